"""`python -m torch_anymps.report trace.json`: one page of HTML about a trace of torch.profiler.

    python -m torch_anymps.report TRACE [--output PAGE] [--rows 40]

TRACE is what export_chrome_trace() or torch.mps.profiler wrote (.json or .json.gz); PAGE is TRACE with .html by
default. The page needs nothing else: device and host over time, kernels, operators, modules (of a profile with
with_stack=True) and the longest times in which the device had nothing to do.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import sys
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field

from torch_anymps import report_page
from torch_anymps.signposts import GPU_CATEGORIES as DEVICE

WAITS = ("vkWaitSemaphores",)
BUCKETS = 200  # of the strips of device and host
EXPLAINED = 50  # of the longest gaps


@dataclass
class Row:
    """What is summed under one name; times are in microseconds."""

    name: str
    calls: int = 0
    device: float = 0  # of its commands
    own: float = 0  # of those that no row inside of it has, too; of a kernel the same as device
    host: float = 0
    bytes: int = 0
    operations: float = 0


@dataclass
class Gap:
    """A time in which the device had nothing to do."""

    begin: float
    length: float
    before: str  # the command that came next
    host: str  # what the thread that asked for that command did for most of the time


@dataclass
class Report:
    """All of it in microseconds from the first event on."""

    length: float = 0
    busy: float = 0
    waited: float = 0  # by the host for the device
    kernels: list[Row] = field(default_factory=list)
    operators: list[Row] = field(default_factory=list)
    modules: list[Row] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    device_strip: list[float] = field(default_factory=list)  # the busy fraction of each of BUCKETS times
    host_strip: list[float] = field(default_factory=list)


class Lane:
    """Events of one thread, which lie in one another or apart."""

    def __init__(self, events: list[dict]) -> None:
        self.events = sorted(events, key=lambda e: (e["ts"], -e["dur"]))
        self.starts = [e["ts"] for e in self.events]
        self.parents: list[int] = []
        stack: list[int] = []
        for i, event in enumerate(self.events):
            while stack and _end(self.events[stack[-1]]) < _end(event):
                stack.pop()
            self.parents.append(stack[-1] if stack else -1)
            stack.append(i)

    def around(self, time: float) -> list[dict]:
        """Events at that time, the innermost first."""
        found = []
        i = bisect_right(self.starts, time) - 1
        while i >= 0:
            if _end(self.events[i]) >= time:
                found.append(self.events[i])
            i = self.parents[i]
        return found


def _end(event: dict) -> float:
    return event["ts"] + event["dur"]


def load(path: pathlib.Path) -> list[dict]:
    """Events of a Chrome trace. Raises ValueError, naming the file, for anything else."""
    content = path.read_bytes()
    try:
        trace = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        return [e for e in events if isinstance(e.get("ts", 0), (int, float))]
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError) as error:
        raise ValueError(f"{path} is no trace of torch.profiler: {type(error).__name__}: {error}") from error


def analyse(events: list[dict]) -> Report:
    """Raises ValueError where no command of a device is in the trace."""
    spans = [e for e in events if e.get("ph") == "X" and "dur" in e and isinstance(e.get("tid"), int)]
    commands = sorted((e for e in spans if e.get("cat") in DEVICE), key=lambda e: e["ts"])
    if not commands:
        raise ValueError("the trace has no commands of a device: was it taken with torch.profiler on mps?")
    of_host = [e for e in spans if e.get("cat") in ("cpu_op", "user_annotation", "privateuse1_runtime")]
    window = [e for e in of_host + commands if e.get("cat") != "user_annotation"]
    begin, end = min(e["ts"] for e in window), max(map(_end, window))
    result = Report(length=end - begin)
    busy = _union([(e["ts"], _end(e)) for e in commands])
    result.busy = sum(b - a for a, b in busy)
    result.waited = sum(e["dur"] for e in of_host if e["name"] in WAITS)
    owners = _Owners(events, spans)
    result.kernels = _by_kernel(commands)
    result.operators, result.modules = owners.sum(commands)
    result.gaps = _gaps(busy, commands, owners, begin)
    result.device_strip = _strip(busy, begin, end)
    main = max(owners.lanes.values(), key=lambda lane: len(lane.events), default=Lane([]))
    working = [(e["ts"], _end(e)) for e in main.events if e["name"] not in WAITS]
    waiting = _union([(e["ts"], _end(e)) for e in main.events if e["name"] in WAITS])
    worked, waited = _strip(_union(working), begin, end), _strip(waiting, begin, end)
    result.host_strip = [max(0.0, w - x) for w, x in zip(worked, waited, strict=True)]
    return result


class _Owners:
    """Whose a command is: the operator that asked for it, and the modules around that."""

    def __init__(self, events: list[dict], spans: list[dict]) -> None:
        by_thread = defaultdict(list)
        modules = defaultdict(list)
        for e in spans:
            if e.get("cat") in ("cpu_op", "privateuse1_runtime"):
                by_thread[e["pid"], e["tid"]].append(e)
            elif e.get("cat") == "python_function" and e["name"].startswith("nn.Module: "):
                modules[e["pid"], e["tid"]].append(e)
        self.lanes = {thread: Lane(found) for thread, found in by_thread.items()}
        self.modules = {thread: Lane(found) for thread, found in modules.items()}
        self.calls = {
            e["args"]["correlation"]: e
            for e in spans
            if e.get("cat") == "privateuse1_runtime" and "correlation" in e.get("args", {})
        }
        # A backward operator belongs to the module of its forward one, to which an arrow leads.
        starts = {e["id"]: e for e in events if e.get("cat") == "fwdbwd" and e.get("ph") == "s"}
        self.forward = {
            (e["pid"], e["tid"], e["ts"]): starts[e["id"]]
            for e in events
            if e.get("cat") == "fwdbwd" and e.get("ph") == "f" and e["id"] in starts
        }

    def stack_of(self, command: dict) -> tuple[list[dict], list[dict]]:
        """Operators and modules around the call that asked for a command, the innermost first."""
        call = self.calls.get(command.get("args", {}).get("correlation"))
        if call is None:
            return [], []
        lane = self.lanes[call["pid"], call["tid"]]
        operators = [e for e in lane.around(call["ts"]) if e["cat"] == "cpu_op"]
        where = call
        for operator in operators:
            where = self.forward.get((operator["pid"], operator["tid"], operator["ts"]), where)
        modules = self.modules.get((where["pid"], where["tid"]))
        return operators, modules.around(where["ts"]) if modules else []

    def sum(self, commands: list[dict]) -> tuple[list[Row], list[Row]]:
        operators: dict[str, Row] = {}
        modules: dict[str, Row] = {}
        for command in commands:
            for rows, stack in zip((operators, modules), self.stack_of(command), strict=True):
                for depth, name in enumerate(dict.fromkeys(e["name"] for e in stack)):
                    row = rows.setdefault(name, Row(name))
                    row.device += command["dur"]
                    row.own += command["dur"] if depth == 0 else 0
        for rows, lanes in ((operators, self.lanes), (modules, self.modules)):
            for lane in lanes.values():
                for event in lane.events:
                    if event["name"] in rows:
                        rows[event["name"]].calls += 1
                        rows[event["name"]].host += event["dur"]
        for row in modules.values():
            row.name = row.name.removeprefix("nn.Module: ")
        return _ranked(operators.values(), "own"), _ranked(modules.values(), "device")


def _ranked(rows, key: str) -> list[Row]:
    return sorted(rows, key=lambda row: -getattr(row, key))


def _by_kernel(commands: list[dict]) -> list[Row]:
    rows: dict[str, Row] = {}
    for command in commands:
        row = rows.setdefault(command["name"], Row(command["name"]))
        arguments = command.get("args", {})
        row.calls += 1
        row.device += command["dur"]
        row.bytes += arguments.get("bytes", 0)
        row.operations += arguments.get("operations", 0)
    return _ranked(rows.values(), "device")


def _union(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without overlaps, in order."""
    result: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((begin, end))
    return result


def _gaps(busy, commands: list[dict], owners: _Owners, zero: float) -> list[Gap]:
    following = dict(zip((e["ts"] for e in reversed(commands)), reversed(commands), strict=True))
    pauses = [(begin, end) for (_, begin), (end, _) in zip(busy, busy[1:], strict=False)]
    result = []
    for begin, end in sorted(pauses, key=lambda pause: pause[0] - pause[1]):
        command = following[end]
        call = owners.calls.get(command.get("args", {}).get("correlation"))
        explained = call and len(result) < EXPLAINED
        host = _busiest(owners.lanes[call["pid"], call["tid"]], begin, end) if explained else ""
        result.append(Gap(begin - zero, end - begin, command["name"], host))
    return result


def _busiest(lane: Lane, begin: float, end: float) -> str:
    """The name of the outermost event that has most of a time; nothing where Python has more than all of them."""
    times: dict[str, float] = defaultdict(float)
    for event, parent in zip(lane.events, lane.parents, strict=True):
        overlap = min(_end(event), end) - max(event["ts"], begin)
        if overlap > 0 and (parent < 0 or event["name"] in WAITS):
            times[event["name"]] += overlap
    name = max(times, key=times.__getitem__, default="")
    return name if name and times[name] > (end - begin) / 2 else "between operators (Python)"


def _strip(intervals, begin: float, end: float) -> list[float]:
    width = max(end - begin, 1e-9) / BUCKETS
    result = [0.0] * BUCKETS
    for first, last in intervals:
        for i in range(max(0, int((first - begin) / width)), min(BUCKETS - 1, int((last - begin) / width)) + 1):
            result[i] += max(0.0, min(last, begin + (i + 1) * width) - max(first, begin + i * width)) / width
    return [min(1.0, value) for value in result]


def main(arguments: list[str] | None = None) -> int:
    """Writes the page and says where. Returns 1, with a sentence on stderr, for what is no such trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=40, help="of each table")
    options = parser.parse_args(arguments)
    output = options.output or options.trace.with_name(options.trace.name.split(".json")[0] + ".html")
    try:
        report = analyse(load(options.trace))
        output.write_text(report_page.html(report, options.trace.name, options.rows))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
