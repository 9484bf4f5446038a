# The dispatcher registrations and op tables of csrc/ops, written by tools/gen_registration.py.
# Sets GENERATED_SOURCES (.cpp), GENERATED_SHADERS (.slang); the target generated_registration writes them.
include_guard()

file(GLOB REGISTRATION_INPUTS CONFIGURE_DEPENDS
    csrc/ops/*.cpp csrc/ops/*/*.cpp csrc/ops/*.yaml)
file(GLOB REGISTRATION_TOOLS CONFIGURE_DEPENDS tools/gen_registration.py tools/anymps_codegen/*.py)
# The list of outputs depends on the tools alone: op sources may change without a new configuration.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${REGISTRATION_TOOLS})

set(REGISTRATION_COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_SOURCE_DIR}/tools/gen_registration.py
    --ops ${CMAKE_SOURCE_DIR}/csrc/ops --out ${GENERATED_DIR})
execute_process(COMMAND ${REGISTRATION_COMMAND} --list
    OUTPUT_VARIABLE REGISTRATION_OUTPUTS OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" REGISTRATION_OUTPUTS "${REGISTRATION_OUTPUTS}")
list(TRANSFORM REGISTRATION_OUTPUTS PREPEND ${GENERATED_DIR}/)

set(GENERATED_SOURCES ${REGISTRATION_OUTPUTS})
list(FILTER GENERATED_SOURCES INCLUDE REGEX "\\.cpp$")
set(GENERATED_SHADERS ${REGISTRATION_OUTPUTS})
list(FILTER GENERATED_SHADERS INCLUDE REGEX "\\.slang$")

if(REGISTRATION_OUTPUTS)
    # Files whose text did not change keep their time, and ninja (restat) rebuilds nothing that depends on them.
    add_custom_command(
        OUTPUT ${REGISTRATION_OUTPUTS}
        COMMAND ${REGISTRATION_COMMAND}
        DEPENDS ${REGISTRATION_INPUTS} ${REGISTRATION_TOOLS} ${TORCH_DIR}/version.py
        COMMENT "Generating registrations" VERBATIM)
endif()
add_custom_target(generated_registration DEPENDS ${REGISTRATION_OUTPUTS})
