// What differs between the versions of PyTorch that one source tree serves.
#pragma once

#include <torch/headeronly/version.h>

// True up to the version that it names: `#if ANYMPS_TORCH_UNTIL(2, 13)` begins what may go when PyTorch 2.13
// is no longer served. tools/gen_registration.py reads such blocks as the preprocessor does: markers may
// stand inside.
#define ANYMPS_TORCH_UNTIL(major, minor) \
    (TORCH_VERSION_MAJOR < (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR <= (minor)))
