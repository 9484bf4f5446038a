"""The tool that counts PyTorch's tests of torch.compile: names of twins, reasons, and docs/compile_coverage.md."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools" / "pytorch_tests"))

from adapted_sources import adapted  # noqa: E402
from inductor_report import FLOAT64, OTHER_VERSION, PAGE, exceptions, page, store, verdict  # noqa: E402

FAILED = {"outcome": "failed", "message": "AssertionError: of no listed kind"}


def test_page_is_what_the_stores_say():
    assert PAGE.read_text() == page()


def test_every_exception_has_a_reason_and_a_pattern():
    for row in exceptions():
        assert row["reason"]
        assert row["test"].pattern or row["message"].pattern, "the row matches every test"


@pytest.mark.parametrize(
    ("entry", "cpu", "outcome", "reason"),
    [
        ({"outcome": "passed"}, {"outcome": "failed"}, "passed", ""),
        (FAILED, {"outcome": "failed"}, "not counted", OTHER_VERSION),
        ({**FAILED, "needs": "float64"}, {}, "not counted", FLOAT64),
        (FAILED, {"outcome": "passed"}, "to do", "no reason is listed"),
        ({"outcome": "skipped", "message": "requires cuda"}, {}, "skipped", "CUDA only"),
    ],
)
def test_verdict(entry, cpu, outcome, reason):
    assert verdict("f.py::Tests::test_x_DEVICE", entry, {"f.py::Tests::test_x_DEVICE": cpu}) == (outcome, reason)


def test_store_counts_by_file_and_reason():
    outcomes = {"a.py::T::x_DEVICE": {"outcome": "passed"}, "a.py::T::y_DEVICE": FAILED, "b.py::T::z_DEVICE": FAILED}
    stored = store({"torch": "2.13", "device": "D", "outcomes": outcomes}, {"b.py::T::z_DEVICE": FAILED}, "of 2.13")
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
