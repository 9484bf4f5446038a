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
import peer  # noqa: E402
import replayed  # noqa: E402
import replayed_networks  # noqa: E402
import results  # noqa: E402
import zoo_step  # noqa: E402
from kernel_profile import COLUMNS, copy_bandwidth, report  # noqa: E402
from networks import NETWORKS, training_step  # noqa: E402

DEFAULT = ("ResNet50", "GPT 124M", "SmolVLA expert", "Whisper-tiny", "GPT-2 token")


def compiled_step(name: str):
    """A function that runs a compiled step of the network, and what the step is."""
    import torch

    torch._dynamo.reset()
    if name in NETWORKS:
        return training_step(name, "mps", True, compile_mode="default"), "train, AMP"
    network = next(network for network in replayed_networks.NETWORKS if network.name == name)
    task = zoo_step.moved(zoo_step.build(network, os.environ.get("ANYMPS_COLD_SMALL") == "1"), "mps")
    if network.trade == "decoding":
        return zoo_step.make_step(task, "mps", False, False, "reduce-overhead"), "infer, bf16"
    return replayed.backward_step(task, "reduce-overhead"), "backward, fp32"


def main() -> None:
    import torch

    device_name, bandwidth = peer.device_name("mps"), copy_bandwidth()
    print(f"{device_name}; dense copy: {bandwidth / 1e9:.0f} GB/s")
    rows = {}
    for name in [word for word in sys.argv[1:] if word != "--save"] or DEFAULT:
        step, what = compiled_step(name)
        rows |= report(f"{name}, {what}", step, bandwidth, device_name)
        del step
        torch.mps.empty_cache()
    if "--save" in sys.argv:
        title = "The most expensive kernels of compiled steps"
        results.save(results.device_facts("mps"), None, title, COLUMNS, rows)


if __name__ == "__main__":
    main()
