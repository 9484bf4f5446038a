# Finds what the build needs and says in a sentence what is missing.
find_package(Python3 REQUIRED COMPONENTS Interpreter Development.Module)

function(python_package_dir name out)
    execute_process(
        COMMAND ${Python3_EXECUTABLE} -c
            "import importlib.util, os
s = importlib.util.find_spec('${name}')
print(os.path.dirname(s.origin) if s else '')"
        OUTPUT_VARIABLE dir OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT dir)
        message(FATAL_ERROR "The Python package '${name}' is not installed for ${Python3_EXECUTABLE}.")
    endif()
    set(${out} ${dir} PARENT_SCOPE)
endfunction()

set(TORCH_DIR "" CACHE PATH "PyTorch's package for the target of a cross build; by default that of the Python")
if(NOT TORCH_DIR)
    python_package_dir(torch FOUND_TORCH_DIR)
    set(TORCH_DIR ${FOUND_TORCH_DIR})
endif()
set(TORCH_INCLUDE_DIR ${TORCH_DIR}/include ${TORCH_DIR}/include/torch/csrc/api/include)
set(TORCH_CPU_LIBRARY ${TORCH_DIR}/lib/libtorch_cpu.so)
set(TORCH_PYTHON_LIBRARY ${TORCH_DIR}/lib/libtorch_python.so)
set(C10_LIBRARY ${TORCH_DIR}/lib/libc10.so)
# What goes into the names of compiled files, of which an installation may hold one a minor: 2_13.
file(STRINGS ${TORCH_DIR}/include/torch/headeronly/version.h TORCH_MINOR REGEX "define TORCH_VERSION_M(AJOR|INOR) ")
string(REGEX REPLACE "[^;0-9]" "" TORCH_MINOR "${TORCH_MINOR}")
string(REPLACE ";" "_" TORCH_MINOR "${TORCH_MINOR}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${TORCH_DIR}/version.py)

python_package_dir(slangpy SLANG_DIR)
file(GLOB SLANG_LIBRARY ${SLANG_DIR}/libslang-compiler.so*)
set(SLANG_INCLUDE_DIR ${SLANG_DIR}/include)

find_path(VULKAN_INCLUDE_DIR vulkan/vulkan.h)
find_file(VOLK_SOURCE volk.c PATHS /usr/include /usr/local/include)
find_path(ZSTD_INCLUDE_DIR zstd.h)
find_library(ZSTD_LIBRARY NAMES libzstd.a zstd)
foreach(needed VULKAN_INCLUDE_DIR VOLK_SOURCE ZSTD_INCLUDE_DIR ZSTD_LIBRARY)
    if(NOT ${needed})
        message(FATAL_ERROR "${needed} was not found. Debian and Ubuntu: "
            "apt install libvulkan-dev libvulkan-volk-dev libzstd-dev. Fedora: "
            "dnf install vulkan-headers vulkan-volk-devel libzstd-devel libzstd-static.")
    endif()
endforeach()
