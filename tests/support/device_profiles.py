"""Devices that nobody here has, as tests/devices/*.yaml describes them, for the Vulkan layer of tests/vulkan_layer.

    python tests/support/device_profiles.py NAME FILE     writes the lines that ANYMPS_DEVICE_PROFILE=FILE reads

A profile has what the driver of such a device reports and where that is to be read. Its subgroup sizes are reported
where nothing is to run: kernels run with the lanes of the software driver below.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PROFILES = sorted(path.stem for path in (ROOT / "tests" / "devices").glob("*.yaml"))
LAYER = "VK_LAYER_ANYMPS_device"

KINDS = {"integrated": 1, "discrete": 2}  # VkPhysicalDeviceType
MEMORY = {"local": 1, "visible": 2, "coherent": 4, "cached": 8}  # VkMemoryPropertyFlagBits
QUEUES = {"graphics": 1, "compute": 2, "transfer": 4, "sparse": 8}  # VkQueueFlagBits


def load(name: str) -> dict:
    return yaml.safe_load((ROOT / "tests" / "devices" / f"{name}.yaml").read_text())


def _bits(names: list[str], table: dict[str, int]) -> int:
    return sum(table[name] for name in names)


def _version(text: str) -> int:
    major, minor, patch = map(int, str(text).split("."))
    return major << 22 | minor << 12 | patch


def lines(profile: dict, subgroups: bool) -> list[str]:
    """For the layer. subgroups: with the device's own subgroup sizes, by which nothing can run."""
    driver = profile["driver"]
    properties = {
        "vendorID": profile["vendor"],
        "deviceID": profile["device"],
        "deviceType": KINDS[profile["kind"]],
        "apiVersion": _version(profile["api"]),
        "driverID": driver["id"],
        **profile["limits"],
    }
    if subgroups:
        sizes = profile["subgroups"]
        properties |= {"subgroupSize": sizes["size"], "minSubgroupSize": sizes["min"], "maxSubgroupSize": sizes["max"]}
    return [
        f"text name {profile['name']}",
        f"text driver_name {driver['name']}",
        f"text driver_info {driver['info']}",
        *(f"property {name} {value}" for name, value in properties.items()),
        *(f"feature {name}" for name in profile["features"]),
        *(f"lacks {name}" for name in profile["lacks"]),
        *(f"heap {heap['mib'] << 20} {_bits(heap['flags'], {'local': 1})}" for heap in profile["heaps"]),
        *(f"type {kind['heap']} {_bits(kind['flags'], MEMORY)}" for kind in profile["types"]),
        *(f"queue {_bits(q['flags'], QUEUES)} {q['count']} {q['timestamp_bits']}" for q in profile["queues"]),
    ]


def layer_folder() -> Path | None:
    """Of the newest build with ANYMPS_BUILD_TESTS; None where there is none."""
    built = [*ROOT.glob("build/tests/vulkan_layer/*.so"), *ROOT.glob("build/*/tests/vulkan_layer/*.so")]
    return max(built, key=lambda path: path.stat().st_mtime).parent if built else None


def environment(name: str, folder: Path, subgroups: bool = False, validation: str | None = None) -> dict[str, str]:
    """Variables of a process for which the software driver is this device. folder: for the profile; validation: where
    the validation layer is, which then goes by the profile's limits and features."""
    file = folder / f"{name}.profile"
    file.write_text("\n".join(lines(load(name), subgroups)) + "\n")
    variables = {"ANYMPS_DEVICE_PROFILE": str(file), "ANYMPS_DEVICE": "", "LOCAL_RANK": ""}
    if validation is None:
        return variables | {"VK_ADD_LAYER_PATH": str(layer_folder()), "VK_INSTANCE_LAYERS": LAYER}
    # The loader orders layers as it finds them, the last one nearest to the driver.
    return variables | {
        "VK_LAYER_PATH": f"{validation}:{layer_folder()}",
        "VK_INSTANCE_LAYERS": f"VK_LAYER_KHRONOS_validation:{LAYER}",
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text("\n".join(lines(load(sys.argv[1]), subgroups=False)) + "\n")
