"""A process that ends right after backward() ends cleanly, however busy the machine is.

ANYMPS_EXIT_RUNS sets the number of processes: 20 by default, 200 in `make test-exit`.
"""

from __future__ import annotations

import os
import textwrap
from concurrent.futures import ThreadPoolExecutor

RUNS = int(os.environ.get("ANYMPS_EXIT_RUNS", "20"))
PARALLEL = 4  # more processes than cores: the race needs a busy machine

AFTER_BACKWARD = """
    import torch
    x = torch.ones(64, 64, device="mps", requires_grad=True)
    (x * 2).exp().sum().backward()
"""

IN_SPAWNED_CHILD = """
    import torch
    import torch.multiprocessing as mp

    def train(rank):
        x = torch.ones(64, 64, device="mps", requires_grad=True)
        (x * 2).exp().sum().backward()

    if __name__ == "__main__":
        mp.spawn(train, nprocs=2)
"""


def run_many(run_python, tmp_path, source: str, runs: int) -> list[str]:
    """The standard error of every process that did not end with status 0 or wrote to it. The first are interpreters,
    the others copies of one, which start sooner and end alike."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(source))

    def run(number: int):
        return run_python(script, timeout=1800, fresh=number < PARALLEL)

    with ThreadPoolExecutor(PARALLEL) as pool:
        processes = list(pool.map(run, range(runs)))
    return [f"status {p.returncode}: {p.stderr[-1000:]}" for p in processes if p.returncode != 0 or p.stderr]


def test_exit_right_after_backward(mps, run_python, tmp_path):
    failures = run_many(run_python, tmp_path, AFTER_BACKWARD, RUNS)
    assert not failures, f"{len(failures)} of {RUNS}: {failures[0]}"


def test_exit_of_spawned_children(mps, run_python, tmp_path):
    runs = max(RUNS // 10, 1)
    failures = run_many(run_python, tmp_path, IN_SPAWNED_CHILD, runs)
    assert not failures, f"{len(failures)} of {runs}: {failures[0]}"


def test_backward_in_an_exit_hook_of_the_user(mps, run_python):
    done = run_python(
        textwrap.dedent("""
            import atexit, torch
            x = torch.ones(3, device="mps", requires_grad=True)
            atexit.register(lambda: ((x * 2).sum().backward(), print(x.grad.cpu().tolist())))
        """)
    )
    assert done.returncode == 0 and done.stdout.strip() == "[2.0, 2.0, 2.0]", done.stderr


def test_exit_with_work_in_flight(mps, run_python):
    done = run_python("import torch; x = torch.ones(1 << 20, device='mps')\nfor _ in range(50): x = x + 1")
    assert done.returncode == 0 and not done.stderr
