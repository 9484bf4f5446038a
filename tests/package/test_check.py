"""`python -m torch_anymps.check`: the report that users paste into an issue, also where something is wrong."""

from __future__ import annotations

import re
import time

import pytest
import torch

from torch_anymps import check, check_operators

RUN = "import runpy, sys; sys.argv[1:] = {}; runpy.run_module('torch_anymps.check', run_name='__main__')"


def test_report(run_python, mps):
    result = run_python(RUN.format(["--seconds", "500"]), timeout=550)  # a busy machine's: all parts are reached
    assert result.returncode == 0, result.stdout + result.stderr
    report = result.stdout
    for label in (
        "device",
        "driver",
        "memory heap 0",
        "memory type 0",
        "training",
        "memory",
        "products",
        "small calls",
    ):
        assert re.search(rf"^{label}: +\S", report, re.MULTILINE), label
    assert re.search(r"^operators, float32: +4[0-9] agree with the CPU", report, re.MULTILINE)
    assert len(re.findall(r"^operators, (?:b?float16): +40 agree", report, re.MULTILINE)) == 2
    assert re.search(r"^longest dispatch: +\d+\.\d+ ms, \w+ over ", report, re.MULTILINE)
    assert report.endswith("\nall checks passed\n")


def test_without_a_device(run_python):
    result = run_python(RUN.format([]), env={"VK_DRIVER_FILES": "/none", "VK_ICD_FILENAMES": "/none"})
    assert result.returncode == 1
    assert "mps is not available: " in result.stdout


def test_a_wrong_operator_is_named(mps, monkeypatch):
    wrong = check_operators.Case("double", lambda x, y, w, i, f: x * (2 if x.is_mps else 3))
    raises = check_operators.Case("raises", lambda x, y, w, i, f: x.reshape(3))
    cases = check_operators.cases()[:2]
    monkeypatch.setattr(check_operators, "cases", lambda: [wrong, raises, *cases])
    it = check.Check(time.monotonic() + 60)
    row = check.operators(it, "float32")
    assert row.startswith("2 of 4 FAILED: double differs by 3.3e-01; raises RuntimeError: ")
    assert it.failures == ["2 operators in float32"]


def test_a_part_that_raises_does_not_end_the_report(mps, capsys):
    it = check.Check(time.monotonic() + 60)
    it.run("a part", lambda _: 1 / 0)
    it.run("another", lambda _: "fine")
    assert it.failures == ["a part: ZeroDivisionError: division by zero"]
    assert "another:" in capsys.readouterr().out


def test_no_part_begins_when_the_time_is_over(mps, capsys):
    it = check.Check(time.monotonic() - 1)
    it.run("late", lambda _: pytest.fail("ran"))
    assert "not reached: the time was over" in capsys.readouterr().out
    assert check.operators(it, "float32") == "stopped after 0 operators: the time was over"
    assert not it.failures


def test_a_hang_ends_with_a_report(run_python, mps):
    script = """if True:
        import sys, time
        from torch_anymps import check
        check.GRACE = 1 - 500  # the end comes 1 s after the start, however late that is, and the first part is reached
        check._header = lambda it: None
        check.operators = lambda it, name: time.sleep(600)
        sys.exit(check.main(["--seconds", "500"]))"""
    result = run_python(script)
    assert result.returncode == 1
    assert "FAILED: operators, float32 did not end in time" in result.stdout


def test_differences():
    x = torch.tensor([1.0, 2.0])
    assert check.difference(x, x) == 0
    assert check.difference(torch.tensor([1.0, 2.2]), x) == pytest.approx(0.1)
    assert check.difference(torch.tensor([1.0, float("nan")]), x) == float("inf")
    assert check.difference(x[:1], x) == float("inf")


def test_commands_are_listed(run_python):
    result = run_python("-m", "torch_anymps")
    assert result.returncode == 0
    for command in ("info", "check", "tune", "report"):
        assert f"python -m torch_anymps.{command}" in result.stdout
