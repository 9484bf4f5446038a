# Toolchain for Debian's g++-aarch64-linux-gnu. tools/aarch64.sh gathers what a build needs and configures one.
# ANYMPS_SYSROOT: a folder with usr/include/vulkan, volk.c, zstd.h and the target's libzstd.a; nothing of its libc.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${ANYMPS_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ANYMPS_SYSROOT)
# The headers of the sysroot come behind the compiler's own; FindPython's are the host's: the stable ABI is the same.
set(CMAKE_C_FLAGS_INIT "-idirafter ${ANYMPS_SYSROOT}/usr/include")
set(CMAKE_CXX_FLAGS_INIT "-idirafter ${ANYMPS_SYSROOT}/usr/include")
