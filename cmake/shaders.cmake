# The shader compiler (a build-time tool) and the archive of all kernels.
# registration.cmake, included before, lists generated shaders in GENERATED_SHADERS (outputs of custom commands).
find_package(Threads REQUIRED)
file(GLOB SHADER_COMPILER_SOURCES CONFIGURE_DEPENDS tools/shader_compiler/*.cpp)
add_executable(shader_compiler ${SHADER_COMPILER_SOURCES})
target_include_directories(shader_compiler PRIVATE csrc ${ZSTD_INCLUDE_DIR})
target_include_directories(shader_compiler SYSTEM PRIVATE ${SLANG_INCLUDE_DIR})
target_link_libraries(shader_compiler PRIVATE ${SLANG_LIBRARY} ${ZSTD_LIBRARY} Threads::Threads)
set_target_properties(shader_compiler PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
# An option, because CMAKE_SKIP_RPATH (which keeps the wheel free of build paths) covers this tool too.
target_link_options(shader_compiler PRIVATE -Wl,-rpath,${SLANG_DIR})

file(GLOB SHADERS CONFIGURE_DEPENDS shaders/*.slang)
file(GLOB_RECURSE SHADER_LIBRARY CONFIGURE_DEPENDS shaders/lib/*.slang)
set(SHADER_CACHE ${CMAKE_BINARY_DIR}/shader_cache)
set(KERNEL_ARCHIVE ${SITE_PACKAGE_DIR}/kernels.bin)
add_custom_command(
    OUTPUT ${KERNEL_ARCHIVE}
    COMMAND shader_compiler --include ${CMAKE_SOURCE_DIR}/shaders --output ${KERNEL_ARCHIVE}
            --cache ${SHADER_CACHE} ${SHADERS} ${GENERATED_SHADERS}
    DEPENDS shader_compiler ${SHADERS} ${SHADER_LIBRARY} ${GENERATED_SHADERS}
    COMMENT "Compiling shaders"
    VERBATIM)
add_custom_target(kernel_archive ALL DEPENDS ${KERNEL_ARCHIVE})
