# Writes the bill of materials of the compiled files (CycloneDX 1.6, PEP 770): what of other projects is in them. One a
# minor version of PyTorch, whose headers and fmt are compiled in.
function(header_version file pattern out)   # the digits of the lines of a header that match, joined by dots
    file(STRINGS ${file} lines REGEX "#define +(${pattern}) ")
    list(TRANSFORM lines REPLACE ".*[ (]([0-9]+).*" "\\1")
    list(JOIN lines "." version)
    set(${out} ${version} PARENT_SCOPE)
endfunction()

header_version(${ZSTD_INCLUDE_DIR}/zstd.h "ZSTD_VERSION_(MAJOR|MINOR|RELEASE)" ZSTD_VERSION)
header_version(${VULKAN_INCLUDE_DIR}/vulkan/vulkan_core.h "VK_HEADER_VERSION" VULKAN_HEADERS_VERSION)
cmake_path(REPLACE_FILENAME VOLK_SOURCE volk.h OUTPUT_VARIABLE VOLK_HEADER)
header_version(${VOLK_HEADER} "VOLK_HEADER_VERSION" VOLK_VERSION)
header_version(${TORCH_DIR}/include/fmt/base.h "FMT_VERSION" FMT_NUMBER)   # 120100 of 12.1.0
math(EXPR FMT_MAJOR "${FMT_NUMBER} / 10000")
math(EXPR FMT_MINOR "${FMT_NUMBER} / 100 % 100")
math(EXPR FMT_PATCH "${FMT_NUMBER} % 100")
file(STRINGS ${TORCH_DIR}/version.py TORCH_VERSION_LINE REGEX "^__version__ = ")
string(REGEX REPLACE ".*'([0-9.]+).*" "\\1" TORCH_RELEASE "${TORCH_VERSION_LINE}")
execute_process(COMMAND ${Python3_EXECUTABLE} -c "import importlib.metadata as m; print(m.version('slangpy'))"
    OUTPUT_VARIABLE SLANGPY_VERSION OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)

set(SBOM ${CMAKE_BINARY_DIR}/torch_anymps_${TORCH_MINOR}.cdx.json)
configure_file(${CMAKE_SOURCE_DIR}/cmake/sbom.cdx.json.in ${SBOM})
if(SKBUILD_METADATA_DIR)
    install(FILES ${SBOM} DESTINATION ${SKBUILD_METADATA_DIR}/sboms)
endif()
