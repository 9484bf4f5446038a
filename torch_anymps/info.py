"""`python -m torch_anymps.info`: which device mps is, or why there is none and what to do."""

from __future__ import annotations

import json
import os
import sys

VENDORS = {
    0x1002: "AMD",
    0x1010: "Imagination",
    0x106B: "Apple",
    0x10DE: "NVIDIA",
    0x13B5: "Arm",
    0x5143: "Qualcomm",
    0x8086: "Intel",
    0x10005: "Mesa",
}


# Bits of VkMemoryPropertyFlags.
MEMORY_PROPERTIES = (
    "device-local",
    "host-visible",
    "coherent",
    "cached",
    "lazily allocated",
    "protected",
    "AMD's coherent",
    "AMD's uncached",
)


def versions() -> str:
    """One line: this package's version, PyTorch's, Python's."""
    import torch

    import torch_anymps
    from torch_anymps import _load

    return (
        f"torch-anymps {torch_anymps.__version__} for PyTorch {' and '.join(_load.built_for()) or 'of no version'}, "
        f"PyTorch {torch.__version__}, Python {sys.version.split()[0]}"
    )


def main() -> int:
    """Prints the report. Returns 0 with a device, 1 without one."""
    import torch

    from torch_anymps import _load

    status = _load.status
    print(versions())
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        print(
            "TORCH_DEVICE_BACKEND_AUTOLOAD keeps torch from loading torch-anymps by itself: "
            "unset it, or import torch_anymps right after torch."
        )
    reason = f"{status.reason}\nWhat to do: {status.advice}" if status.reason else torch.ops.anymps.unavailable_reason()
    if reason:
        print(f"mps is not available: {reason}")
        return 1
    rows = device_rows()
    rows += [(f"Vulkan device {i}", line) for i, line in enumerate(torch.ops.anymps.device_list())]
    rows.append(("kernels", str(len(torch.ops.anymps.kernel_names()))))
    rows.append(("torch.compile", _compiler()))
    for label, value in [*rows, *_patch_rows()]:
        print(f"{label + ':':<21} {value}")
    return 0


def _compiler() -> str:
    """What generates code for torch.compile, or why nothing does and what to install."""
    from torch_anymps.inductor import runtime

    try:
        return f"Slang {runtime.compiler_version()}"
    except RuntimeError as error:
        return str(error)


def device_info() -> dict:
    """What the chosen device is and has, as a dict. Raises RuntimeError where there is none.

    `name`, `driver`, `vulkan_version`, `kind` ("discrete GPU", "integrated GPU", "software"), `vendor_id`; `features`,
    a dict of bools; `subgroup_size` with `min_subgroup_size` and `max_subgroup_size`, in lanes; `shared_memory_bytes`,
    of a workgroup; `compute_units`, 0 where the driver does not tell; `heaps` and `memory_types`, as Vulkan numbers
    them; `profile`, the row of the device profiles that plans are made by; `cache_folder`.
    """
    from torch_anymps import _load

    return json.loads(_load.operators().device_info())


def device_rows() -> list[tuple[str, str]]:
    """device_info() as labels and texts."""
    info = device_info()
    rows = [
        ("device", info["name"]),
        ("vendor", VENDORS.get(info["vendor_id"], f"{info['vendor_id']:#06x}")),
        ("driver", info["driver"]),
        ("Vulkan", info["vulkan_version"]),
        ("kind", info["kind"]),
        ("features", ", ".join(f"{name} {'yes' if on else 'no'}" for name, on in info["features"].items())),
        ("subgroup sizes", f"{info['min_subgroup_size']} to {info['max_subgroup_size']}"),
        ("shared memory", f"{info['shared_memory_bytes'] // 1024} KiB a workgroup"),
    ]
    profile = info["profile"]
    rates = "as python -m torch_anymps.tune --device measured them" if profile["measured"] else "of the table"
    rows.append(("profile", f"{profile['name']}, rates {rates}"))
    for index, heap in enumerate(info["heaps"]):
        rows.append(
            (f"memory heap {index}", f"{heap['bytes'] / 2**30:.1f} GiB{' device-local' * heap['device_local']}")
        )
    for index, kind in enumerate(info["memory_types"]):
        properties = [name for bit, name in enumerate(MEMORY_PROPERTIES) if kind["flags"] >> bit & 1]
        rows.append((f"memory type {index}", f"heap {kind['heap']} {', '.join(properties)}".rstrip()))
    rows.append(("cache folder", info["cache_folder"]))
    return rows


def _patch_rows() -> list[tuple[str, str]]:
    from torch_anymps import patches

    rows = []
    for patch in patches.registered():
        state = "in force" if patch.in_force else "waits for its library"
        if patch.error:
            state = f"left out, as this version of its library has changed ({patch.error})"
        rows.append(("patch " + patch.name, f"{state}. {patch.why}"))
    return rows


if __name__ == "__main__":
    sys.exit(main())
