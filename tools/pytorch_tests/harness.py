"""What the pytest plugins of this folder share: PyTorch's tests instantiated for mps, and the outcome of every test."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.testing._internal import common_device_type, common_utils

DEVICE = os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"]
SECONDS_BETWEEN_WRITES = 5
FULL_DTYPE = re.compile(r"float64|complex128|Float64|Double")
LINES = " / "  # between lines of an error
TWINS = re.compile(r"(Cpu|GPU|CPU|MPS)(?=Tests?$|$)")
OTHER_DEVICES = {"cpu", "cuda", "xpu", "mps", "meta"} - {DEVICE}
OF_RANK = re.compile(r"Process \d+ exited with error code|Thread \d+ exited with exception|Exception in worker process")
GONE = re.compile(r"connection to another rank is gone|Connection closed by peer")  # another rank has failed
RAISED = re.compile(r"[\w.]*(Error|Exception|Failed|Exit|Interrupt)\b")
OUR_FILES = re.compile(r"(torch_anymps/[\w/]+\.py)(?::|\", line )(\d+)(?::|,) in ")


def supply(renamed: list[tuple[object, str, object]]) -> None:
    """Gives modules the names (module, name, value) that tests of another version of PyTorch import."""
    for module, name, value in renamed:
        if not hasattr(module, name):
            setattr(module, name, value)


def instantiate_for_mps() -> None:
    """instantiate_device_type_tests makes tests for mps too, and lists are those of a new macOS."""
    common_utils.MACOS_VERSION = 26.0  # -1 on Linux, which would select the lists of the oldest macOS
    instantiate = common_device_type.instantiate_device_type_tests

    def instantiate_device_type_tests(*args, **kwargs):
        only_for = kwargs.get("only_for")
        if only_for and {"cpu", "cuda"} <= set(only_for):  # all that functorch's tests know
            kwargs["only_for"] = (*only_for, "mps")
        return instantiate(*args, **{**kwargs, "allow_mps": True})

    common_device_type.instantiate_device_type_tests = instantiate_device_type_tests


def key_of_twin(nodeid: str) -> str:
    """test_torchinductor.py::GPUTests::test_add_mps -> test_torchinductor.py::Tests::test_add_DEVICE, as on the CPU."""
    file, *groups, name = nodeid.split("::")
    if name.endswith(f"_{DEVICE}"):
        name = name.removesuffix(DEVICE) + "DEVICE"
    else:
        name = re.sub(rf"_{DEVICE}(?=_|$)", "_DEVICE", name, count=1)
    return "::".join([os.path.basename(file), *(TWINS.sub("", group) for group in groups), name])


def of_another_device(item) -> bool:
    device = getattr(item.cls, "device_type", None) or getattr(item.cls, "device", None)
    return isinstance(device, str) and device.split(":")[0] in OTHER_DEVICES


def add_part_options(parser) -> None:
    add_options(parser)
    parser.addoption("--next", metavar="N", type=int, default=0, help="run N tests of what is left")
    parser.addoption("--known", metavar="FILE", help="with --next: the keys of the tests that are not left, as JSON")


def select_part(config, items: list) -> None:
    """Keeps the tests of DEVICE, of these what the options of add_part_options ask for."""
    items[:] = [item for item in items if not of_another_device(item)]
    if file := config.getoption("--device-failed-in"):
        failed = failed_in(file)
        items[:] = [item for item in items if key_of_twin(item.nodeid) in failed]
    if file := config.getoption("--known"):
        known = set(json.loads(Path(file).read_text()))
        items[:] = [item for item in items if key_of_twin(item.nodeid) not in known]
        items.sort(key=lambda item: zlib.crc32(key_of_twin(item.nodeid).encode()))  # a part is spread over the file
        items[config.getoption("--next") :] = []


def failed_in(file: str) -> set[str]:
    """The keys of the tests that failed in the outcomes of a file that run.py wrote."""
    with open(file) as text:
        outcomes = json.load(text)["outcomes"]
    return {key for key, entry in outcomes.items() if entry["outcome"] == "failed"}


def first_error(errors: list[str], text: str) -> str:
    """The first lines of an error, without the "raised:" of torch.compile or the process of ranks, under which it
    stands."""
    if not errors:
        return text.strip().split("\n")[-1]
    if errors[0].endswith("raised:") and len(errors) > 1:
        errors = errors[1:]
    if any(OF_RANK.search(line) for line in errors):
        raised = [place for place, line in enumerate(errors) if RAISED.match(line)][1:]
        own = [place for place in raised if not GONE.search(errors[place])]
        errors = errors[next(iter(own + raised), 0) :]
    return LINES.join([line.strip() for line in errors if line.strip()][:4])


class Outcomes:
    """Outcome and first lines of the error of every test; lives in the process that the user started.

    `key_of` makes the name of a test from pytest's id.
    """

    def __init__(self, path: str, key_of: Callable[[str], str]) -> None:
        self.path = path
        self.key_of = key_of
        self.found: dict[str, dict[str, str]] = {}
        self.written = time.monotonic()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        for nodeid in ids:
            self.found.setdefault(self.key_of(nodeid), {"outcome": "not run"})
        self.write()

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.outcome == "passed":
            return
        text = str(report.longrepr or "")
        outcome = report.outcome
        if outcome == "failed" and "Unexpected success" in text:
            outcome = "passed"  # expected to fail on Apple's device
        entry = {"outcome": outcome}
        if outcome == "failed":
            errors = re.findall(r"^E +(.*)", text, re.MULTILINE)
            entry["message"] = first_error(errors, text)[:300]
            if any(FULL_DTYPE.search(line) for line in errors):
                entry["needs"] = "float64"
            if places := OUR_FILES.findall(text):
                entry["where"] = ":".join(places[-1])
        if outcome == "skipped":
            entry["message"] = text[-200:]
        self.found[self.key_of(report.nodeid)] = entry
        if time.monotonic() - self.written > SECONDS_BETWEEN_WRITES:
            self.write()

    def pytest_sessionfinish(self):
        self.write()

    def write(self):
        with open(f"{self.path}.new", "w") as file:
            json.dump(self.found, file, indent=0)
        os.replace(f"{self.path}.new", self.path)
        self.written = time.monotonic()


def add_options(parser) -> None:
    parser.addoption("--device-results", metavar="FILE", help="where outcomes are written, as JSON")
    parser.addoption("--device-failed-in", metavar="FILE", help="run only what failed in these outcomes")


def collect_outcomes(config, key_of: Callable[[str], str]) -> None:
    """Registers Outcomes in the process that the user started, and in none of its workers."""
    path = config.getoption("--device-results")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(path, key_of))


@pytest.fixture(autouse=True)
def errors_stay_with_their_test():
    """What the device has still to report belongs to the test that caused it."""
    yield
    if DEVICE == "mps":
        with contextlib.suppress(RuntimeError):
            torch.mps.synchronize()
