"""Refuses what the patch of accelerate prevents, where that one is not in force or accelerate has changed."""

import functools
import os

WHY = "accelerate refuses to train unconnected copies of a model where several processes were launched on mps."
TARGETS = ("accelerate.state",)

REFUSAL = (
    "{count} processes were launched to train together on mps, but accelerate would train {count} unconnected copies: "
    "torch_anymps's patch of accelerate is not in force{error}. Launch one process, use the CPU (accelerate launch "
    "--cpu), or install a version of accelerate that torch_anymps knows."
)


def apply(module, replace):
    replace(module.PartialState, "__init__", _checked(module.DistributedType, module.PartialState.__init__))


def _checked(kinds, init):
    @functools.wraps(init)
    def checked_init(self, *args, **kwargs):
        init(self, *args, **kwargs)
        count = int(os.environ.get("WORLD_SIZE", 1))
        if count > 1 and self.distributed_type == kinds.NO and self.device.type == "mps":
            raise RuntimeError(REFUSAL.format(count=count, error=_error()))

    return checked_init


def _error() -> str:
    from torch_anymps import patches

    errors = [patch.error for patch in patches.registered() if patch.name == "accelerate" and patch.error]
    return f" ({errors[0]})" if errors else ""
