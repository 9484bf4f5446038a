"""FSDP's own operators are written for every device but mps."""

WHY = "fully_shard's operators, which PyTorch registers for each device by name, are registered for mps too."
TARGETS = ("torch.distributed.fsdp._fully_shard._fsdp_collectives",)
# Its operators, and the functions that are their kernels on other devices.
KERNELS = {
    "all_gather_copy_in": "all_gather_copy_in_cuda",
    "split_with_sizes_copy": "split_with_sizes_copy",
    "chunk_cat": "chunk_cat",
}


def apply(module, replace):
    from torch.library import Library

    library = Library("fsdp", "IMPL")
    for operator, kernel in KERNELS.items():
        library.impl(operator, getattr(module, kernel), "MPS")
    replace(module, "_mps_library", library)  # the kernels live as long as it
