"""A process that runs cases of tests/op_db/test_sweep.py one by one, and the other end of it.

A case that ends the process, or does not come back in time, is told as such; the next one gets a new process. As a
script it reads a case a line from its input, and writes lines of JSON: where it is, and what came out.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

START_SECONDS = 120  # until a process has imported PyTorch and its samples
MOST_CASES = 400  # of a process


@dataclass
class Result:
    """What became of a case."""

    outcome: str  # one of sweep_case.OUTCOMES, or "none": nothing to compare
    counts: dict[str, int] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)  # the first of each outcome
    seconds: float = 0.0  # of the processor


class Worker:
    """Owns one process at a time. Used by one thread."""

    def __init__(self):
        self._process: subprocess.Popen | None = None
        self._lines: queue.Queue = queue.Queue()
        self._cases = 0

    def run(self, name: str, check: str, limit: int, seconds: float) -> Result:
        """Runs a case, once more without every comparison that ends or stops the process on the CPU already."""
        skip: list[int] = []
        while True:
            if self._process is None or self._cases >= MOST_CASES:
                self._start()
            self._cases += 1
            request = {"name": name, "check": check, "limit": limit, "skip": skip}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            number, device, last = -1, "cpu", None
            while "outcome" not in (last := self._next(seconds)):
                if "ended" in last:
                    break
                number, device = last["number"], last["device"]
            if "outcome" in last:
                return Result(**last)
            if device == "mps" or number < 0 or number in skip:
                message = f"{last['ended']} in comparison {number}, on {device}"
                return Result(last["how"], {last["how"]: 1}, {last["how"]: message})
            skip.append(number)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        self.close()
        variables = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
        variables.pop("PYTORCH_ENABLE_MPS_FALLBACK", None)
        command = [sys.executable, str(Path(__file__).resolve())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=variables
        )
        self._lines, self._cases = queue.Queue(), 0
        threading.Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True).start()
        ready = self._next(START_SECONDS)
        assert "ready" in ready, f"the process for cases does not start: {ready}"

    def _next(self, seconds: float) -> dict:
        """The next line; {"ended": why, "how": outcome} where the process ends or says nothing for so long."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self.close()
            return {"ended": f"no answer within {seconds:.0f} s", "how": "timeout"}
        if line:
            return json.loads(line)
        code = self._process.wait()
        self._process = None
        return {"ended": signal.Signals(-code).name if code < 0 else f"exit status {code}", "how": "died"}


def _read(stream, lines: queue.Queue) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    import torch
    from sweep_case import OUTCOMES, run_case

    torch.set_num_threads(1)
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    device = torch.device("mps")
    print(json.dumps({"ready": torch.backends.mps.get_name()}), file=answers)
    for line in sys.stdin:
        case = json.loads(line)
        # Freed blocks full of NaN: a kernel that leaves results unwritten shows it.
        blocks = [torch.full((size,), float("nan"), device=device) for size in (256, 4096, 65536)]
        del blocks

        def says(number: int, device: str) -> None:
            print(json.dumps({"number": number, "device": device}), file=answers)

        begin = time.process_time()
        report = run_case(case["name"], case["check"], case["limit"], set(case["skip"]), says)
        outcome = next((name for name in OUTCOMES if report.counts[name]), "none")
        result = {"outcome": outcome, "counts": dict(report.counts), "messages": report.messages}
        result["seconds"] = round(time.process_time() - begin, 2)
        print(json.dumps(result), file=answers)


if __name__ == "__main__":
    main()
