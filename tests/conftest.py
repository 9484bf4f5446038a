"""Shared fixtures. Tests that need the device ask for `mps`; a machine without one fails them with the reason."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import types
import zlib
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from configured_build import newest_build
from template_process import Template, serves

import torch_anymps


def pytest_addoption(parser):
    parser.addoption("--op-db-full", action="store_true", help="all samples of every operator of PyTorch's op_db")
    parser.addoption("--op-db-seconds", type=float, metavar="S", help="skip what has not begun by then, and count it")
    parser.addoption("--op-db-results", metavar="FILE", help="where test_op_db.py writes outcomes, as JSON")
    parser.addoption("--op-db-prune", action="store_true", help="take exceptions that agree out of their file")
    parser.addoption("--sweep-full", action="store_true", help="test_sweep.py: all checks of every operator")
    parser.addoption(
        "--sweep-seed", type=int, default=0, metavar="SEED", help="which check each operator has otherwise"
    )
    parser.addoption(
        "--sweep-results", metavar="FILE", help="outcomes, a line of JSON each; those there are not run again"
    )
    parser.addoption("--random-calls", type=int, default=500, metavar="N", help="calls that test_random_calls.py draws")
    parser.addoption("--shapes", type=int, default=150, metavar="N", help="shapes that test_memory.py visits, twice")
    parser.addoption("--soak-steps", type=int, default=60, metavar="N", help="of test_soak.py, which wants 2000")
    parser.addoption("--compiled-graphs", type=int, default=25, metavar="N", help="that test_compiled_random.py draws")
    parser.addoption("--shard", metavar="I/N", help="of N processes that share the tests, this is number I, from 0")
    parser.addoption("--random-seed", type=int, default=0, metavar="SEED", help="of the numbers that all tests draw")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--shard"):
        number, processes = map(int, config.getoption("--shard").split("/"))
        items[:] = items[number::processes]


# torch.manual_seed() formats a stack for each of these devices while it waits for one: 6 ms a call, of the 10^5 here.
for _absent in (torch.cuda, torch.xpu, torch.mtia):
    _absent.traceback = types.SimpleNamespace(format_stack=list)


@pytest.fixture(autouse=True)
def _seed(request):
    """A test draws the same numbers whatever ran before it, in any folder; --random-seed gives all tests others."""
    name = f"tests/{request.path.name}::{request.node.nodeid.partition('::')[2]}"
    number = zlib.crc32(name.encode()) + request.config.getoption("--random-seed")
    print(f"torch.manual_seed({number})")  # reports show it where the test fails
    random.seed(number)
    torch.manual_seed(number)


@pytest.fixture(scope="session")
def mps() -> torch.device:
    """The device; fails with the sentence of torch_anymps.info where there is none."""
    if not torch.backends.mps.is_available():
        report = subprocess.run([sys.executable, "-m", "torch_anymps.info"], capture_output=True, text=True)
        pytest.fail(f"the mps device is not available:\n{report.stdout}{report.stderr}", pytrace=False)
    return torch.device("mps")


@pytest.fixture(scope="session")
def software(mps) -> bool:
    """Whether the driver runs on the CPU."""
    return json.loads(torch.ops.anymps.device_info())["kind"] == "software"


@pytest.fixture(scope="session")
def flushes(mps) -> bool:
    """Whether subnormal floats are 0 in the device's arithmetic; Vulkan leaves that to drivers."""
    return (torch.tensor([1e-39], device=mps) * 1.5).cpu().item() == 0.0


FALLBACK_OF_THE_RUN = os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK")


@pytest.fixture(autouse=True)
def _fallback_as_the_run_was_started(monkeypatch):
    """accelerate switches the fallback on for the whole process when it is imported."""
    if FALLBACK_OF_THE_RUN is None:
        monkeypatch.delenv("PYTORCH_ENABLE_MPS_FALLBACK", raising=False)


@pytest.fixture
def no_garbage(mps):
    """What earlier tests left in cycles would be freed under way, and change the counts of memory that a test reads."""
    gc.collect()
    torch.mps.synchronize()


@pytest.fixture
def no_fallback():
    """Fails the test when an op ran on the CPU because it has no kernel, whatever PYTORCH_ENABLE_MPS_FALLBACK says."""
    before = torch_anymps.fallbacks()
    yield
    after = torch_anymps.fallbacks()
    fell_back = {op: count - before.get(op, 0) for op, count in after.items() if count > before.get(op, 0)}
    assert not fell_back, f"ops without a kernel ran on the CPU: {fell_back}"


@pytest.fixture
def raises_as_on_the_cpu(mps):
    """Checks that case(ones), where ones(*shape) makes a tensor, raises the same type and words on both devices."""

    def check(case):
        with pytest.raises(Exception) as expected:
            case(lambda *shape: torch.ones(shape))
        with pytest.raises(type(expected.value)) as actual:
            case(lambda *shape: torch.ones(shape, device=mps))
        assert str(actual.value).split("\n")[0] == str(expected.value).split("\n")[0]

    return check


@pytest.fixture
def poisoned_memory(mps):
    """Freed blocks full of NaN: a kernel that reads what it should not, or leaves results unwritten, shows it."""
    blocks = [torch.full((size,), float("nan"), device=mps) for size in (256, 4096, 65536, 1 << 20)]
    del blocks


@contextmanager
def conv_precision(name: str):
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = name
    yield
    torch.backends.cudnn.conv.fp32_precision = before


@pytest.fixture
def all_bits_of_f32():
    """PyTorch lets convolutions use TF32, as scaled halves here; the CPU has all bits, and so has this test."""
    with conv_precision("ieee"):
        yield


@pytest.fixture
def tf32():
    with conv_precision("tf32"):
        yield


@pytest.fixture(scope="session")
def build() -> Path:
    """The newest configured build folder."""
    folder = newest_build()
    if folder is None:
        pytest.skip("no build folder in this checkout, so no shader compiler (make build)")
    return folder


@pytest.fixture(scope="session")
def _template():
    template = Template()
    yield template
    template.close()


@pytest.fixture
def run_python(_template):
    """Runs a script (a path, source text, or -m before a module) in a new process and returns its CompletedProcess.

    Variables of `env` replace those of this process; None removes one. The process is a copy of one that has imported
    PyTorch, where that makes no difference; `fresh` asks for a new interpreter.
    """

    def run(
        script, *args: str, env: dict[str, str | None] | None = None, timeout: float = 300, fresh: bool = False
    ) -> subprocess.CompletedProcess:
        variables = dict(os.environ)
        for name, value in (env or {}).items():
            variables.pop(name, None)
            if value is not None:
                variables[name] = value
        if not fresh and serves(env or {}):
            return _template.run(str(script), *args, variables=variables, timeout=timeout)
        start = [str(script)] if script == "-m" or os.path.exists(str(script)) else ["-c", str(script)]
        command = [sys.executable, *start, *args]
        return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=timeout)

    return run


@pytest.fixture(scope="session")
def path_of():
    """The path of a test file, in whichever folder: no two have the same name."""

    def find(file: str) -> str:
        (path,) = Path(__file__).parent.rglob(file)
        return str(path)

    return find


@pytest.fixture
def passes(path_of, run_python):
    """Checks that tests of another file, chosen by -k, pass in a process with other variables."""

    def check(file: str, tests: str, timeout: float = 600, **env: str) -> None:
        arguments = ["-q", "-x", "--timeout", str(timeout), path_of(file), "-k", tests]
        result = run_python(f"import sys, pytest; sys.exit(pytest.main({arguments!r}))", env=env, timeout=timeout)
        assert result.returncode == 0 and " passed" in result.stdout, result.stdout + result.stderr

    return check
