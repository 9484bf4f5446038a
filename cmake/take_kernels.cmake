# Copies the kernel ARCHIVE of another build to OUTPUT if its generated shaders (OTHERS) are the same as OURS.
foreach(ours other IN ZIP_LISTS OURS OTHERS)
    file(SHA256 ${ours} ours_hash)
    file(SHA256 ${other} other_hash)
    if(NOT ours_hash STREQUAL other_hash)
        message(FATAL_ERROR "The shaders ${ours} and ${other} differ: the kernels of that build are not this one's.")
    endif()
endforeach()
file(REMOVE ${OUTPUT})  # perhaps a link to another build's
file(COPY_FILE ${ARCHIVE} ${OUTPUT})
