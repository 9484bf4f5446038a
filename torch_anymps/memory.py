"""What the allocator of mps holds and has done, in the format of PyTorch's memory viewer.

    torch_anymps.memory.record_history()
    train()
    torch_anymps.memory.dump_snapshot("memory.pickle")  # open it at https://docs.pytorch.org/memory_viz

torch.cuda.memory has the same three under other names, and describes the format at torch.cuda.memory._snapshot.
"""

from __future__ import annotations

import json
import os
import pickle

from torch_anymps import _load


def record_history(enabled: bool = True, *, stacks: bool = True, max_entries: int = 1_000_000) -> None:
    """Notes every allocation from here on, the last `max_entries` events, with Python's stack where `stacks`.

    A stack costs about 2.5 us an allocation. enabled=False stops, and forgets what was noted. Raises ValueError for a
    negative max_entries, RuntimeError without a device.
    """
    if max_entries < 0:
        raise ValueError(f"max_entries must not be negative, got {max_entries}")
    _load.operators().record_memory_history(max_entries if enabled else -1, stacks)


def snapshot() -> dict:
    """Segments and their blocks as they are now, and the events noted since record_history(), oldest first.

    A dict of torch.cuda.memory._snapshot()'s form: sizes in bytes, times in microseconds, addresses of the device.
    Raises RuntimeError without a device.
    """
    found = json.loads(_load.operators().memory_snapshot())
    symbols = found["symbols"]
    stacks = [[symbols["frames"][frame] for frame in stack] for stack in symbols["stacks"]]

    def with_frames(entry: dict) -> dict:
        return entry | {"frames": stacks[entry.pop("stack")]}

    for segment in found["segments"]:
        segment["segment_pool_id"] = tuple(segment["segment_pool_id"])
        segment["blocks"] = [with_frames(block) for block in segment["blocks"]]
        segment["frames"] = []
    return {
        "segments": found["segments"],
        "device_traces": [[with_frames(event) for event in found["trace"]]],
        "allocator_settings": {},
        "external_annotations": [],
    }


def dump_snapshot(path: str | os.PathLike = "memory.pickle") -> None:
    """Writes snapshot() to a file for the viewer, by pickle; an existing one is replaced."""
    with open(path, "wb") as file:
        pickle.dump(snapshot(), file)
