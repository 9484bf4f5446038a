"""Random calls on mps beside the CPU: operators, dtypes, shapes of 0 to 5 dimensions, strides and offsets.

500 by default; `make soak` runs 20,000 (--random-calls). A failure names its seeds; --random-seed starts there.
"""

from __future__ import annotations

import pytest
import torch
from op_db_support import Report, compare
from random_calls import random_call

BLOCK = 25  # calls of one test


def pytest_generate_tests(metafunc):
    if "seeds" not in metafunc.fixturenames:
        return
    first, count = (metafunc.config.getoption(name) for name in ("--random-seed", "--random-calls"))
    metafunc.parametrize("seeds", [range(s, min(s + BLOCK, first + count)) for s in range(first, first + count, BLOCK)])


def described(seed: int, call, message: str) -> str:
    tensors = [t for t in (call.sample.input, *call.sample.args) if isinstance(t, torch.Tensor)]
    layouts = ", ".join(f"{tuple(t.shape)} {t.dtype} {t.stride()}+{t.storage_offset()}" for t in tensors)
    return f"seed {seed}: {call.operator.name} {call.dtype} [{layouts}] {call.sample.kwargs}: {message}"


@pytest.mark.usefixtures("all_bits_of_f32", "poisoned_memory")
def test_random_calls(seeds, mps):
    problems = []
    for seed in seeds:
        call = random_call(seed)
        report: dict[str, Report] = {"forward": Report(), "gradient": Report()}
        compare(call.operator, call.sample, call.dtype, report, with_gradient=False)
        forward = report["forward"]
        if forward.outcome not in ("pass", "none"):
            problems.append(described(seed, call, f"{forward.outcome}: {forward.messages[forward.outcome][:400]}"))
    assert not problems, "\n".join(problems)


def test_most_calls_compare_something(mps):
    """Few of the drawn calls are ones that the CPU refuses."""
    compared = 0
    for seed in range(100):
        call = random_call(seed)
        try:
            call.operator(call.sample.input, *call.sample.args, **call.sample.kwargs)
            compared += 1
        except RuntimeError:
            pass
    assert compared >= 90
