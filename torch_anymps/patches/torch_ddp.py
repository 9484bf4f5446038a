"""DistributedDataParallel: its bf16 hook asks for CUDA and NCCL by name, and an index counts the process's devices."""

import functools

WHY = "DistributedDataParallel takes bf16_compress_hook on mps, and device_ids=[LOCAL_RANK] for mps:0, which it is."
TARGETS = ("torch.nn.parallel.distributed",)
REFUSAL = "BF16 all reduce communication hook required"


def apply(module, replace):
    owner = module.DistributedDataParallel
    replace(owner, "__init__", _with_own_index(owner.__init__))
    replace(owner, "_check_comm_hook", _with_bfloat16(owner._check_comm_hook))


def _with_own_index(init):
    """Inputs move to the device of these numbers, on a stream kept by the number."""

    @functools.wraps(init)
    def init_ddp(self, *args, **kwargs):
        init(self, *args, **kwargs)
        if self.device_type == "mps" and self.device_ids:
            self.device_ids, self.output_device = [0], 0

    return init_ddp


def _with_bfloat16(check):
    """This check is the method's last: nothing is passed over with it."""

    @functools.wraps(check)
    def check_comm_hook(self, hook):
        try:
            check(self, hook)
        except TypeError as error:
            if self.device_type != "mps" or not str(error).startswith(REFUSAL):
                raise

    return check_comm_hook
