/* Kernels of one's own on the mps device of torch-anymps, from C. What is here stays as it is: later versions add
 * functions at the end of the table. <anymps/torch.h> is the same for C++ with PyTorch's tensors. */
#ifndef ANYMPS_KERNEL_H
#define ANYMPS_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ANYMPS_KERNEL_API_VERSION 1

typedef enum anymps_status {
    ANYMPS_OK = 0,
    ANYMPS_INVALID_VALUE = 1, /* an argument, or a module that is no kernel */
    ANYMPS_OUT_OF_MEMORY = 2,
    ANYMPS_ERROR = 3 /* whatever else: no device, a driver that cannot compile the kernel */
} anymps_status;

/* A kernel; it lives as long as the process. */
typedef struct anymps_kernel anymps_kernel;

/* Memory of the device that a dispatch reads, or writes where write is not 0: what comes before and after it and uses
 * the same bytes is ordered. Name the whole storage of a tensor, in elements or not. */
typedef struct anymps_access {
    uint64_t address;
    uint64_t bytes;
    uint32_t write;
    uint32_t reserved; /* 0 */
} anymps_access;

/* All functions may be called from any thread. They return a status; where that is not ANYMPS_OK, last_error() is one
 * sentence, valid until the thread's next call. */
typedef struct anymps_kernel_api {
    uint32_t version; /* ANYMPS_KERNEL_API_VERSION of the library */
    uint32_t bytes;   /* of this table */

    /* A kernel of SPIR-V up to 1.5 with one entry point, "main": no descriptors, at most 128 bytes of push constants;
     * memory is reached by address (PhysicalStorageBuffer64). The words are copied. subgroup_size: what the kernel
     * counts on, or 0 for the device's own. name: what profilers call it. */
    anymps_status (*create)(const char *name, const uint32_t *spirv, size_t words, uint32_t subgroup_size,
                            anymps_kernel **kernel);

    /* Records a dispatch in the current stream, or in the graph that the thread captures, and returns at once.
     * groups: workgroups, at most 65,535 in a dimension; none are no error. group_size: threads of a workgroup, or
     * NULL for what the module says. args: the push constants; more than 128 bytes are copied and their address is
     * pushed. */
    anymps_status (*dispatch)(anymps_kernel *kernel, const uint32_t groups[3], const uint32_t *group_size,
                              const void *args, size_t bytes, const anymps_access *accesses, size_t count);

    const char *(*last_error)(void);
} anymps_kernel_api;

#ifdef __cplusplus
}
#endif

#endif
