"""torch.compile must know the strides that convolutions of mps give: the function it asks is built without mps."""

import functools

WHY = "torch's shape functions take results of mps convolutions for contiguous, also where they are channels-last."
TARGETS = ("torch",)


def apply(module, replace):
    owner = module._C
    replace(owner, "_conv_determine_backend_memory_format", _with_mps(owner._conv_determine_backend_memory_format))


def _with_mps(original):
    @functools.wraps(original)
    def format_of(input, weight, backend):
        """That of a convolution's result and of its gradients: channels-last where the input or the weight is."""
        if input.device.type != "mps":
            return original(input, weight, backend)
        import torch
        from torch._prims_common import suggest_memory_format

        formats = [suggest_memory_format(t) for t in (input, weight) if t.dim() in (4, 5)]
        last = torch.channels_last if input.dim() == 4 else torch.channels_last_3d
        return last if last in formats else torch.contiguous_format

    return format_of
