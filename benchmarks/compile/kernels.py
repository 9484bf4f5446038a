"""The most expensive kernels of compiled steps, with their fraction of the bound that applies.

Bounds, columns and environment variables are those of models/kernel_profile.py. Steps: training under bf16 autocast by
torch.compile of models.py's networks; forward, loss and backward, and a token of GPT-2, of replayed.py's. Arguments:
their names, default: those whose goal is missed. `--save` writes the table into benchmarks/results.

Under a profile a replayed function runs as it is compiled, so that the sizes are known.
"""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "models"), str(HERE)]
import replayed  # noqa: E402
import replayed_networks  # noqa: E402
import zoo_step  # noqa: E402
from kernel_profile import named, report_all  # noqa: E402
from networks import NETWORKS, training_step  # noqa: E402

DEFAULT = ("ResNet50", "GPT 124M", "SmolVLA expert", "Whisper-tiny", "GPT-2 token")


def compiled_step(name: str):
    """What the network's step is, and a function that compiles it and returns a function that runs it."""
    if name in NETWORKS:
        return f"{name}, train, AMP", lambda: training_step(name, "mps", True, compile_mode="default")
    network = next(network for network in replayed_networks.NETWORKS if network.name == name)

    def replayed_step():
        task = zoo_step.moved(zoo_step.build(network, os.environ.get("ANYMPS_COLD_SMALL") == "1"), "mps")
        if network.trade == "decoding":
            return zoo_step.make_step(task, "mps", False, False, "reduce-overhead")
        return replayed.backward_step(task, "reduce-overhead")

    return f"{name}, {'infer, bf16' if network.trade == 'decoding' else 'backward, fp32'}", replayed_step


def steps():
    import torch

    for name in named(DEFAULT):
        torch._dynamo.reset()
        yield compiled_step(name)


if __name__ == "__main__":
    report_all("The most expensive kernels of compiled steps", steps())
