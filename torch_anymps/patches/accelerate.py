"""accelerate, and Trainer by it, know no training on several mps devices: each process would train by itself."""

import functools
import os

WHY = "accelerate and Hugging Face's Trainer connect the processes of torchrun and `accelerate launch` on mps."
TARGETS = ("accelerate.state", "accelerate.commands.launch")


def apply(module, replace):
    if module.__name__ == "accelerate.commands.launch":
        replace(module, "_validate_launch_command", _with_processes(module._validate_launch_command))
        return
    state, kinds = module.PartialState, module.DistributedType
    replace(state, "_prepare_backend", _with_mps(kinds, state._prepare_backend))
    replace(state, "set_device", _own_device(kinds, state.set_device))


def is_launched() -> bool:
    """Whether a launcher has made this process one of several."""
    return int(os.environ.get("LOCAL_RANK", -1)) != -1


def _with_mps(kinds, prepare):
    """There is no MULTI_MPS; MULTI_GPU is what opens DDP and FSDP."""

    @functools.wraps(prepare)
    def prepare_backend(self, cpu=False, sagemaker_dp=False, backend=None):
        import torch

        chosen, kind = prepare(self, cpu, sagemaker_dp, backend)
        if kind == kinds.NO and is_launched() and not cpu and torch.backends.mps.is_available():
            # DistributedDataParallel is told no device index, whose meaning depends on the process.
            os.environ.setdefault("ACCELERATE_BYPASS_DEVICE_MAP", "true")
            return backend or "cpu:gloo,mps:anymps", kinds.MULTI_GPU
        return chosen, kind

    return prepare_backend


def _own_device(kinds, set_device):
    @functools.wraps(set_device)
    def set_own_device(self):
        import torch

        multi = self.distributed_type == kinds.MULTI_GPU and not torch.cuda.is_available()
        if self.device is None and multi and torch.backends.mps.is_available():
            self.device = torch.device("mps", 0)  # LOCAL_RANK chose the GPU
        else:
            set_device(self)

    return set_own_device


def _with_processes(validate):
    """`accelerate launch --num_processes 2` starts as many processes only with --multi_gpu, or where it finds CUDA."""

    @functools.wraps(validate)
    def validate_command(args):
        import torch

        others = ("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm")
        if not any(getattr(args, name, False) for name in others) and torch.backends.mps.is_available():
            args.multi_gpu = (args.num_processes or 1) > 1
        return validate(args)

    return validate_command
