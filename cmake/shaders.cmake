# The shader compiler and the writer of headers (build-time tools), and the archive of all kernels.
# registration.cmake, included before, lists generated shaders in GENERATED_SHADERS (outputs of custom commands).
# Kernels are the same for every version of PyTorch and every processor: of several builds of a tree one compiles them.
set(ANYMPS_KERNELS_OF "" CACHE PATH "Build folder of the same sources whose kernels this build takes")
find_package(Threads REQUIRED)
if(CMAKE_CROSSCOMPILING)
    # What runs during the build is that folder's.
    if(NOT ANYMPS_KERNELS_OF)
        message(FATAL_ERROR "A cross build takes kernels and tools of this machine's build: -DANYMPS_KERNELS_OF=...")
    endif()
    add_executable(shader_headers IMPORTED)
    set_target_properties(shader_headers PROPERTIES IMPORTED_LOCATION ${ANYMPS_KERNELS_OF}/bin/shader_headers)
else()
    file(GLOB SHADER_COMPILER_SOURCES CONFIGURE_DEPENDS tools/shader_compiler/*.cpp csrc/spirv/*.cpp)
    list(APPEND SHADER_COMPILER_SOURCES csrc/kernels/archive_reader.cpp)
    file(GLOB SHADER_HEADERS_SOURCES CONFIGURE_DEPENDS tools/shader_headers/*.cpp)
    add_executable(shader_compiler ${SHADER_COMPILER_SOURCES})
    target_link_libraries(shader_compiler PRIVATE ${ZSTD_LIBRARY} Threads::Threads)
    target_include_directories(shader_compiler PRIVATE csrc ${ZSTD_INCLUDE_DIR})
    add_executable(shader_headers ${SHADER_HEADERS_SOURCES} tools/shader_compiler/files.cpp
        tools/shader_compiler/kernel_rows.cpp tools/shader_compiler/slang_compiler.cpp
        tools/shader_compiler/spirv_patch.cpp)
    target_include_directories(shader_headers PRIVATE csrc tools/shader_compiler)
    foreach(tool shader_compiler shader_headers)
        target_include_directories(${tool} SYSTEM PRIVATE ${SLANG_INCLUDE_DIR})
        target_link_libraries(${tool} PRIVATE ${SLANG_LIBRARY})
        set_target_properties(${tool} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
        # An option, because CMAKE_SKIP_RPATH (which keeps the wheel free of build paths) covers these tools too.
        target_link_options(${tool} PRIVATE -Wl,-rpath,${SLANG_DIR})
    endforeach()
endif()

# SHADERS have kernels, SHADER_LIBRARY is what they import: all of lib, and modules beside the shaders of their family.
file(GLOB_RECURSE SHADERS CONFIGURE_DEPENDS shaders/*.slang)
file(GLOB SHADER_RUN_TIME_LIBRARY CONFIGURE_DEPENDS shaders/lib/*.slang)  # what kernels made at run time import
set(SHADER_LIBRARY ${SHADER_RUN_TIME_LIBRARY})
set(SHADER_MODULES "")
foreach(file ${SHADERS})
    file(STRINGS ${file} module REGEX "^(module|implementing) [a-zA-Z0-9_]+;" LIMIT_COUNT 1)
    if(module)
        list(APPEND SHADER_MODULES ${file})
    endif()
endforeach()
list(APPEND SHADER_LIBRARY ${SHADER_MODULES})
list(REMOVE_DUPLICATES SHADER_LIBRARY)
list(REMOVE_ITEM SHADERS ${SHADER_LIBRARY})

# What C++ knows of shaders: <anymps/shaders/FAMILY/NAME.h>. A few seconds for all of them; ninja (restat) rebuilds only
# what includes a header whose text has changed.
set(SHADER_HEADERS ${SHADERS} ${SHADER_MODULES})
list(TRANSFORM SHADER_HEADERS REPLACE "^${CMAKE_SOURCE_DIR}/(.*)\\.slang$" "${GENERATED_DIR}/anymps/\\1.h")
set(GENERATED_SHADER_HEADERS ${GENERATED_SHADERS})
list(TRANSFORM GENERATED_SHADER_HEADERS REPLACE "^${GENERATED_DIR}/(.*)\\.slang$" "${GENERATED_DIR}/anymps/\\1.h")
list(APPEND SHADER_HEADERS ${GENERATED_SHADER_HEADERS} ${GENERATED_DIR}/anymps/shaders/instances.h)
add_custom_command(
    OUTPUT ${SHADER_HEADERS}
    COMMAND shader_headers --include ${CMAKE_SOURCE_DIR}/shaders --output ${GENERATED_DIR}/anymps/shaders ${SHADERS}
            ${GENERATED_SHADERS}
    DEPENDS shader_headers ${SHADERS} ${SHADER_LIBRARY} ${GENERATED_SHADERS}
    COMMENT "Writing shaders' headers"
    VERBATIM)
add_custom_target(generated_shader_headers DEPENDS ${SHADER_HEADERS})

set(SHADER_CACHE ${CMAKE_BINARY_DIR}/shader_cache)
set(KERNEL_ARCHIVE ${SITE_PACKAGE_DIR}/kernels.bin)
if(ANYMPS_KERNELS_OF)
    set(OTHER_SHADERS ${GENERATED_SHADERS})
    list(TRANSFORM OTHER_SHADERS REPLACE "^${GENERATED_DIR}" "${ANYMPS_KERNELS_OF}/generated")
    add_custom_command(
        OUTPUT ${KERNEL_ARCHIVE}
        COMMAND ${CMAKE_COMMAND} "-DOURS=${GENERATED_SHADERS}" "-DOTHERS=${OTHER_SHADERS}"
                -DARCHIVE=${ANYMPS_KERNELS_OF}/site/torch_anymps/kernels.bin -DOUTPUT=${KERNEL_ARCHIVE}
                -P ${CMAKE_SOURCE_DIR}/cmake/take_kernels.cmake
        DEPENDS ${ANYMPS_KERNELS_OF}/site/torch_anymps/kernels.bin ${GENERATED_SHADERS}
        COMMENT "Taking kernels of ${ANYMPS_KERNELS_OF}"
        VERBATIM)
else()
    add_custom_command(
        OUTPUT ${KERNEL_ARCHIVE}
        COMMAND shader_compiler --include ${CMAKE_SOURCE_DIR}/shaders --output ${KERNEL_ARCHIVE}
                --cache ${SHADER_CACHE} ${SHADERS} ${GENERATED_SHADERS}
        DEPENDS shader_compiler ${SHADERS} ${SHADER_LIBRARY} ${GENERATED_SHADERS}
        COMMENT "Compiling shaders"
        VERBATIM)
endif()
add_custom_target(kernel_archive ALL DEPENDS ${KERNEL_ARCHIVE})
