"""The tools that count PyTorch's tests of torch.compile and torch.distributed: names, reasons, sources and pages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "pytorch_tests"))

from adapted_sources import WHEEL_SUITE, adapted, adapted_distributed  # noqa: E402
from suite_report import FLOAT64, INDUCTOR, OTHER_VERSION, SUITES, page, store, verdict  # noqa: E402

FAILED = {"outcome": "failed", "message": "AssertionError: of no listed kind"}


@pytest.fixture(params=SUITES.values(), ids=SUITES)
def suite(request):
    return request.param


def test_page_is_what_the_stores_say(suite):
    assert suite.page.read_text() == page(suite)


def test_every_exception_has_a_reason_and_a_pattern(suite):
    for row in suite.exceptions:
        assert row["reason"]
        assert row["test"].pattern or row["message"].pattern, "the row matches every test"


@pytest.mark.parametrize(
    ("entry", "cpu", "outcome", "reason"),
    [
        ({"outcome": "passed"}, {"outcome": "failed"}, "passed", ""),
        (FAILED, {"outcome": "failed"}, "not counted", OTHER_VERSION),
        (FAILED, {**FAILED, "message": "aten.sdpa_for_cpu has no strategy"}, "to do", "no reason is listed"),
        ({**FAILED, "needs": "float64"}, {}, "not counted", FLOAT64),
        (FAILED, {"outcome": "passed"}, "to do", "no reason is listed"),
        ({"outcome": "skipped", "message": "requires cuda"}, {}, "skipped", "CUDA only"),
    ],
)
def test_verdict(entry, cpu, outcome, reason):
    assert verdict(INDUCTOR, "f.py::Tests::test_x_DEVICE", entry, {"f.py::Tests::test_x_DEVICE": cpu}) == (
        outcome,
        reason,
    )


def test_store_counts_by_file_and_reason():
    outcomes = {"a.py::T::x_DEVICE": {"outcome": "passed"}, "a.py::T::y_DEVICE": FAILED, "b.py::T::z_DEVICE": FAILED}
    stored = store(
        INDUCTOR, {"torch": "2.13", "device": "D", "outcomes": outcomes}, {"b.py::T::z_DEVICE": FAILED}, "of 2.13"
    )
    assert stored["counts"] == {"a.py": {"passed": 1, "to do": 1}, "b.py": {"not counted": 1}}
    assert [(row["outcome"], row["count"], row["examples"]) for row in stored["reasons"]] == [
        ("not counted", 1, ["z"]),
        ("to do", 1, ["y"]),
    ]


def test_sources_lose_what_they_say_of_metal():
    text = 'def xfail_if_mps(fn):\n    old\nx = TestFailure(\n    ("cpu", "mps"), is_skip=True)\ny = ("mps",)\n'
    assert adapted("test_torchinductor.py", text, "mps") == (
        "def xfail_if_mps(fn):\n    return fn\n\n\ndef _xfail_if_metal(fn):\n    old\n"
        'x = TestFailure(\n    ("cpu", "metal"), is_skip=True)\ny = ("mps",)\n'
    )


def test_sources_of_graphs_name_the_device():
    text = 'if TEST_CUDA_GRAPH:\n    x = y.cuda().to("cuda:0")\n    torch.cuda.synchronize()\n'
    assert adapted("test_cudagraph_trees.py", text, "mps") == (
        'if True:\n    x = y.to("mps").to("mps:0")\n    torch.mps.synchronize()\n'
    )
    assert adapted("test_foreach.py", text, "mps") == text


def test_sources_of_ranks_name_the_device():
    text = (
        'import torch.cuda\nif BACKEND != "nccl":\n    init(backend="nccl" if x == "cuda" else "gloo")\n'
        'torch.cuda.set_device(f"cuda:{rank}")\nfrom torch.cuda.amp import GradScaler\n'
    )
    assert adapted_distributed("test_any.py", text, "mps") == (
        'import torch\nif False:\n    init(backend="gloo" if x == "mps" else "gloo")\n'
        'torch.mps.set_device(f"mps:{rank}")\nfrom torch.cuda.amp import GradScaler\n'
    )
    assert "class DistributedTestOfRanks(" in adapted_distributed(WHEEL_SUITE, "", "mps")


def test_error_of_a_rank_is_its_own(monkeypatch):
    """Not that of the process that started it, nor that of a rank whose peer has ended."""
    monkeypatch.setenv("PYTORCH_TESTING_DEVICE_ONLY_FOR", "mps")
    from harness import first_error

    errors = ["RuntimeError: Process 0 exited with error code 10 and exception:", "Traceback (most recent call last):"]
    errors += ["DistBackendError: recv on mps failed: the connection to another rank is gone.", "", "Traceback (most"]
    errors += ["ValueError: 3", "in two lines"]
    assert first_error(errors, "") == "ValueError: 3 / in two lines"
