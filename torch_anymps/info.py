"""`python -m torch_anymps.info`: which device mps is, or why there is none and what to do."""

from __future__ import annotations

import json
import os
import sys


def main() -> int:
    """Prints the report. Returns 0 with a device, 1 without one."""
    import torch

    import torch_anymps
    from torch_anymps import _load

    status = _load.status
    print(f"torch-anymps {torch_anymps.__version__}, PyTorch {torch.__version__}, Python {sys.version.split()[0]}")
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        print(
            "TORCH_DEVICE_BACKEND_AUTOLOAD keeps torch from loading torch-anymps by itself: "
            "unset it, or import torch_anymps right after torch."
        )
    reason, advice = status.reason, status.advice
    if status.loaded and not torch.backends.mps.is_available():
        why = json.loads(torch.ops.anymps.unavailable_reason())
        reason, advice = why["reason"], why["advice"]
    if reason:
        print(f"mps is not available: {reason}\nWhat to do: {advice}")
        return 1
    for label, value in _device_rows(json.loads(torch.ops.anymps.device_info())):
        print(f"{label + ':':<18}{value}")
    for label, value in _patch_rows():
        print(f"{label + ':':<18}{value}")
    return 0


def _device_rows(info: dict) -> list[tuple[str, str]]:
    rows = [
        ("device", info["name"]),
        ("vendor", info["vendor"]),
        ("driver", info["driver"]),
        ("Vulkan", info["vulkan_version"]),
        ("kind", info["kind"]),
        ("features", ", ".join(f"{name} {'yes' if on else 'no'}" for name, on in info["features"].items())),
        ("subgroup sizes", f"{info['min_subgroup_size']} to {info['max_subgroup_size']}"),
    ]
    for index, heap in enumerate(info["heaps"]):
        rows.append(
            (f"memory heap {index}", f"{heap['bytes'] / 2**30:.1f} GiB{' device-local' * heap['device_local']}")
        )
    rows.append(("kernels", str(info["kernel_count"])))
    rows.append(("cache folder", info["cache_folder"] or "none"))
    if len(info["devices"]) > 1:
        rows.append(("other devices", "; ".join(info["devices"])))
    return rows


def _patch_rows() -> list[tuple[str, str]]:
    from torch_anymps import patches

    rows = []
    for patch in patches.registered():
        state = f"failed ({patch.error})" if patch.error else "in force" if patch.in_force else "waits for its library"
        rows.append(("patch " + patch.name, f"{state}. {patch.why}"))
    return rows


if __name__ == "__main__":
    sys.exit(main())
