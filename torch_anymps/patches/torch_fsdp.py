"""FSDP names the devices that it serves, and mps is none of them."""

import functools

WHY = "FSDP's operators, moves of inputs, scaler and device_id=LOCAL_RANK serve mps, whose name PyTorch's own lack."
OPERATORS = "torch.distributed.fsdp._fully_shard._fsdp_collectives"
STATE = "torch.distributed.fsdp._fully_shard._fsdp_state"
SCALER = "torch.distributed.fsdp.sharded_grad_scaler"
INIT = "torch.distributed.fsdp._init_utils"
TARGETS = (OPERATORS, STATE, SCALER, INIT)
# Its operators, and the functions that are their kernels on other devices.
KERNELS = {
    "all_gather_copy_in": "all_gather_copy_in_cuda",
    "split_with_sizes_copy": "split_with_sizes_copy",
    "chunk_cat": "chunk_cat",
}


def apply(module, replace):
    if module.__name__ == OPERATORS:
        _register_kernels(module, replace)
    elif module.__name__ == STATE:
        state = module.FSDPState
        replace(state, "_root_pre_forward", _with_inputs_on_device(module, state._root_pre_forward))
    elif module.__name__ == INIT:
        replace(module, "_get_device_from_device_id", _with_own_index(module._get_device_from_device_id))
    else:
        replace(module, "_is_supported_device", _or_mps(module._is_supported_device))
        scaler = module.ShardedGradScaler
        replace(scaler, "unscale_", _with_scale_on_cpu(scaler.unscale_))


def _register_kernels(module, replace):
    from torch.library import Library

    library = Library("fsdp", "IMPL")
    for operator, kernel in KERNELS.items():
        library.impl(operator, getattr(module, kernel), "MPS")
    replace(module, "_mps_library", library)  # the kernels live as long as it


def _with_inputs_on_device(module, root_pre_forward):
    """Inputs that lie on the CPU move to the device, in the module that a forward pass begins with."""

    @functools.wraps(root_pre_forward)
    def root_pre_forward_on_device(self, root, args, kwargs):
        self._lazy_init()
        begins = self._state_ctx.iter_forward_root is None
        args, kwargs = root_pre_forward(self, root, args, kwargs)
        if begins and self._device.type == "mps" and (args or kwargs):
            (args,), (kwargs,) = module._to_kwargs(args, kwargs, self._device, False)
        return args, kwargs

    return root_pre_forward_on_device


def _with_own_index(from_device_id):
    """mps:LOCAL_RANK is mps:0, as tensors of this process say; any other number stays for PyTorch's own error."""

    @functools.wraps(from_device_id)
    def _get_device_from_device_id(*args, **kwargs):
        import torch

        device = from_device_id(*args, **kwargs)
        if device is None or device.type != "mps" or not device.index:
            return device
        try:
            torch.accelerator.set_device_index(device.index)
        except RuntimeError:
            return device
        return torch.device("mps", 0)

    return _get_device_from_device_id


def _or_mps(is_supported):
    @functools.wraps(is_supported)
    def is_supported_device(tensor):
        return tensor.device.type == "mps" or is_supported(tensor)

    return is_supported_device


def _with_scale_on_cpu(unscale):
    """The reciprocal of the scale is taken in float64."""

    @functools.wraps(unscale)
    def unscale_with_scale_on_cpu(self, optimizer):
        scale = self._scale
        if scale is None or scale.device.type != "mps":
            return unscale(self, optimizer)
        self._scale = scale.cpu()
        try:
            return unscale(self, optimizer)
        finally:
            self._scale = scale

    return unscale_with_scale_on_cpu
