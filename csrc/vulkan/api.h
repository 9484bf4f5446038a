// The Vulkan API, loaded at run time by volk: the package imports on a machine without a loader.
#pragma once

#ifndef VK_NO_PROTOTYPES
#define VK_NO_PROTOTYPES
#endif
#include <volk.h>
