"""GPU times by kernel: what `torch_anymps.profile()` returns."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from torch_anymps import _load, device_rates


@dataclass
class Kernel:
    """All dispatches of one kernel over the same sizes while the profile was taken."""

    name: str  # of the kernel in the archive: "add_f32_dense"
    variant: str  # its specialization constants: "256,0,6,6,6"
    shape: str  # the sizes where the launcher tells them, else the number of workgroups
    calls: int
    seconds: float  # on the GPU, of all calls
    bytes: int  # of one call: the storages that it reads or writes, each once
    operations: int  # floating-point operations of one call; 0 where the launcher does not tell

    @property
    def bytes_per_second(self) -> float:
        """Bytes/s of all calls. A storage counts once a call, however often or partly it is read."""
        return self.calls * self.bytes / self.seconds if self.seconds else 0.0

    @property
    def operations_per_second(self) -> float:
        """FLOP/s of all calls; 0.0 where the launcher does not tell the operations."""
        return self.calls * self.operations / self.seconds if self.seconds else 0.0


@dataclass
class Profile:
    """A context in which the GPU time of every dispatch is taken; profiles do not nest.

    Dispatches do not overlap meanwhile, so the sum of the times may exceed the time of the same work without a
    profile. `kernels` is filled when the context ends, which waits for the device; the most expensive come first.
    Raises RuntimeError without a device, where the driver has no timestamps, and while another profile is taken.
    """

    kernels: list[Kernel] = field(default_factory=list)

    def __enter__(self) -> Profile:
        _load.operators().start_profile()
        return self

    def __exit__(self, *_) -> None:
        self.kernels = sorted(map(_kernel, json.loads(_load.operators().stop_profile())), key=lambda k: -k.seconds)

    @property
    def seconds(self) -> float:
        """GPU time of everything, in seconds."""
        return sum(kernel.seconds for kernel in self.kernels)

    def slow(self, factor: float = 3.0, rates: dict[str, float] | None = None) -> list[tuple[Kernel, float]]:
        """Kernels that take more than `factor` times their bound on this device, and how many times it is.

        The bound of a call is the longest of three times: its bytes at the rate of a copy, its operations at the rate
        of large products, and the delay of a launch; who could save most seconds comes first. rates: in SI units
        under the names of device_rates.measure(), by default those that plans are made by.
        """
        rates = rates or device_rates.planned()
        ratios = [(k, k.seconds / (k.calls * _bound(k, rates))) for k in self.kernels]
        over = [(k, ratio) for k, ratio in ratios if ratio > factor]
        return sorted(over, key=lambda pair: pair[0].seconds * (1 / pair[1] - 1))

    def table(self, limit: int = 20) -> str:
        """The `limit` most expensive kernels as lines of text: ms, share of the GPU time, calls, GB/s, TFLOP/s."""
        lines = [f"{'ms':>10} {'share':>6} {'calls':>6} {'us/call':>9} {'GB/s':>7} {'TFLOP/s':>8}  kernel, sizes"]
        for k in self.kernels[:limit]:
            lines.append(
                f"{k.seconds * 1e3:10.3f} {k.seconds / (self.seconds or 1):6.1%} {k.calls:6d} "
                f"{k.seconds / k.calls * 1e6:9.1f} {k.bytes_per_second / 1e9:7.0f} "
                f"{k.operations_per_second / 1e12:8.2f}  {k.name}, {k.shape}"
            )
        lines.append(f"{self.seconds * 1e3:10.3f} ms of GPU time in {sum(k.calls for k in self.kernels)} dispatches")
        return "\n".join(lines)


def _bound(kernel: Kernel, rates: dict[str, float]) -> float:
    """Seconds that one call takes at least."""
    words = kernel.name.split("_")
    matrix = next((rates[f"matrix_{dtype}"] for dtype in ("f16", "bf16") if dtype in words), 0.0)
    flops = kernel.operations / (matrix or rates["simt_f32"])
    return max(kernel.bytes / rates["bytes"], flops, rates["launch"])


def _kernel(row: dict) -> Kernel:
    name, _, variant = row["kernel"].partition("[")
    seconds = row["nanoseconds"] * 1e-9
    return Kernel(name, variant.rstrip("]"), row["shape"], row["calls"], seconds, row["bytes"], row["operations"])
