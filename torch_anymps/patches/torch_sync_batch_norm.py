"""SyncBatchNorm is written for operators that CUDA alone has."""

import functools

WHY = "SyncBatchNorm normalizes over the batches of all processes on mps."
TARGETS = ("torch.nn.modules.batchnorm",)


def apply(module, replace):
    owner = module.SyncBatchNorm
    replace(owner, "forward", _with_mps(module, owner.forward))


def _with_mps(module, forward):
    @functools.wraps(forward)
    def sync_forward(self, input):
        import torch.distributed as dist

        if input.device.type != "mps":
            return forward(self, input)
        self._check_input_dim(input)
        self._check_non_zero_input_channels(input)
        together = self.training and dist.is_available() and dist.is_initialized()
        if together and dist.get_world_size(self.process_group) > 1:
            return _normalize(self, input, self.process_group or dist.group.WORLD)
        return module._BatchNorm.forward(self, input)

    return sync_forward


def _normalize(norm, input, group):
    """Batch norm of [N, C, ...] over the batches of a group, in float32, by operators that have derivatives.

    The deviations are taken from the mean of all ranks, in a second all_reduce: squares of values lose their digits.
    """
    import torch
    from torch.distributed.nn.functional import all_reduce

    x = input.float()
    others = [d for d in range(x.dim()) if d != 1]
    shape = [1, -1, *[1] * (x.dim() - 2)]
    count = x.new_full((1,), x.numel() / x.size(1))
    sums = all_reduce(torch.cat([x.sum(others), count]), group=group)
    total = sums[-1].detach()
    mean = sums[:-1] / total
    deviations = x - mean.view(shape)
    variance = all_reduce(deviations.square().sum(others), group=group) / total
    y = deviations * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        y = y * norm.weight.view(shape) + norm.bias.view(shape)
    if norm.track_running_stats:
        with torch.no_grad():
            norm.num_batches_tracked.add_(1)
            part = 1 / norm.num_batches_tracked if norm.momentum is None else norm.momentum
            unbiased = variance.detach() * (total / (total - 1))
            for running, value in ((norm.running_mean, mean.detach()), (norm.running_var, unbiased)):
                running.add_((value - running) * part)
    return y.to(input.dtype)
