"""What generated code depends on of the device: part of the key of Inductor's caches."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DeviceConfig:
    """Of the current device. workgroup, subgroup: threads; vector: elements a thread loads at once."""

    name: str
    driver: str
    software: bool  # a driver on CPU cores: no barriers, no shared memory, one element a thread
    workgroup: int
    subgroup: int
    vector: int
    compute_units: int
    registers: int  # of 32 bits, that a thread has at most
    float_atomics: bool  # it adds to floats in memory by itself
    matrix_units: bool  # products are made of cooperative matrices


@functools.cache
def device_config() -> DeviceConfig:
    info = json.loads(torch.ops.anymps.device_info())
    software = info["kind"] == "software"
    subgroup = info["subgroup_size"]
    return DeviceConfig(
        name=info["name"],
        driver=info["driver"],
        software=software,
        workgroup=subgroup if software else 256,
        subgroup=subgroup,
        vector=1 if software else 4,
        compute_units=info["planned_compute_units"],
        registers=info["profile"]["registers"],
        float_atomics=info["features"]["atomics"],
        matrix_units=info["features"]["coopmat"],
    )


def on_mps(*nodes) -> bool:
    """Whether all nodes of Inductor's scheduler work on mps; those that only order others have no device."""
    devices = [node.get_device() for node in nodes]
    return all(device is not None and device.type == "mps" for device in devices)
