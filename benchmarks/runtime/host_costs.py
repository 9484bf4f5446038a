"""Where each microsecond of a small training step goes: an MLP 64 wide, a batch of 64, by samples of call stacks.

    python benchmarks/runtime/host_costs.py [--optimizer sgd|adamw] [--seconds 20] [--functions 12] [--read] [--save]

A step that the host bounds runs for some seconds while stack_sampler.c (built with `cc`) takes the stacks of its thread
and of autograd's, by the wall clock. A sample belongs to the innermost of its frames that one of PARTS names; memory
and locks are their callers'. While the main thread waits for autograd's, the latter's samples count, and what is left
is the switch between the two. Shares are of the time of a step without samples. --read reads the loss in every step,
which waits for the device.
"""

from __future__ import annotations

import argparse
import bisect
import collections
import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import results  # noqa: E402

WIDTH, LAYERS, BATCH = 64, 3, 64
PERIOD = 1e-3
FRAMES, CAPACITY = 62, 200_000

# (part, library, function): the first row that fits a frame, from the innermost frame on.
PARTS = [
    ("waiting for the device", "torch_anymps", r"TimelineSemaphore::wait|CommandEncoder::(wait|download|synchronize)"),
    ("submission", "torch_anymps", r"Impl::submit|Device::submit|CommandEncoder::(submit|replay)"),
    ("encoding", "torch_anymps", r"CommandEncoder|record_command|record_barrier|ArgumentRing|Hazards|CommandGraph"),
    ("memory of tensors", "torch_anymps", r"[Aa]llocator"),
    ("operators' host code", "torch_anymps", r""),
    ("autograd", "torch_cpu", r"autograd|VariableType|ADInplaceOrView"),
    ("dispatcher", "torch_cpu", r"at::_ops::|c10::|at::redispatch|wrapper_|PythonFallback"),
    ("ATen: meta functions, composites", "torch_cpu", r""),
    ("autograd", "torch_python", r"autograd::Py(Node|Engine)|PyFunction"),
    ("Python and its bindings", "torch_python", r""),
    ("Python and its bindings", "python", r""),
]
SWITCH = "switch to autograd's thread and back"
SWITCHES = r"pthread_cond_|pthread_mutex_lock|lll_lock|sem_wait|futex"


class Sample(ctypes.Structure):
    _fields_ = [("thread", ctypes.c_int32), ("count", ctypes.c_int32), ("frames", ctypes.c_void_p * FRAMES)]


class Sampler:
    """Stacks of this process's main thread and of autograd's, in a with statement."""

    def __init__(self):
        with tempfile.TemporaryDirectory() as folder:
            library = f"{folder}/sampler.so"
            command = ["cc", "-O2", "-shared", "-fPIC", str(HERE / "stack_sampler.c"), "-o", library, "-lrt"]
            subprocess.run(command, check=True)
            self.library = ctypes.CDLL(library)
        self.library.start.argtypes = [
            ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_long,
        ]  # fmt: skip
        self.samples = (Sample * CAPACITY)()

    def __enter__(self):
        self.main = threading.get_native_id()
        names = {int(task.name): (task / "comm").read_text() for task in pathlib.Path("/proc/self/task").iterdir()}
        threads = [self.main, *(number for number, name in names.items() if name.startswith("pt_autograd"))]
        numbers = (ctypes.c_int32 * len(threads))(*threads)
        error = self.library.start(self.samples, CAPACITY, numbers, len(threads), int(PERIOD * 1e9))
        if error:
            raise OSError(error, "timers of threads")
        return self

    def __exit__(self, *_):
        self.taken = min(self.library.stop(), CAPACITY)

    def stacks(self):
        """(whether of the main thread, addresses) of each sample."""
        for sample in self.samples[: self.taken]:
            yield sample.thread == self.main, sample.frames[: sample.count]


class Symbols:
    """Library and function of an address of this process."""

    def __init__(self):
        self.starts, self.maps, self.tables, self.known = [], [], {}, {}
        bases = {}
        for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
            found = re.match(r"(\w+)-(\w+) \S+ \w+ \S+ \d+ +(/.*)", line)
            if found:
                begin, end, path = int(found[1], 16), int(found[2], 16), found[3]
                self.starts.append(begin)
                self.maps.append((end, path, bases.setdefault(path, begin)))

    def find(self, address: int) -> tuple[str, str]:
        if address not in self.known:
            self.known[address] = self._find(address)
        return self.known[address]

    def _find(self, address: int) -> tuple[str, str]:
        index = bisect.bisect(self.starts, address) - 1
        if index < 0 or address >= self.maps[index][0]:
            return "", ""
        _, path, base = self.maps[index]
        if path not in self.tables:
            self.tables[path] = self._table(path)
        addresses, names = self.tables[path]
        at = bisect.bisect(addresses, address - base) - 1
        return pathlib.Path(path).name, names[at] if at >= 0 else ""

    @staticmethod
    def _table(path: str):
        rows = []
        for option in ("--defined-only", "-D"):
            done = subprocess.run(["nm", "-C", "-n", option, path], capture_output=True, text=True)
            for line in done.stdout.splitlines():
                found = re.match(r"(\w+) [TtWwVuiB] (.*)", line)
                if found:
                    rows.append((int(found[1], 16), found[2]))
            if rows:
                break
        return [row[0] for row in rows], [row[1] for row in rows]


def part_of(frames: list[tuple[str, str]]) -> tuple[str, str]:
    """The part that a stack belongs to, and the frame that says so."""
    for library, function in frames:
        for part, where, what in PARTS:
            if where in library and re.search(what, function):
                return part, function or library
    return "other", frames[0][0] if frames else ""


def shares(sampler: Sampler) -> tuple[dict[str, float], collections.Counter]:
    """Of the main thread's time each part's, and the functions that the samples of the parts are in."""
    symbols, parts, functions = Symbols(), collections.Counter(), collections.Counter()
    total = waits = active = 0
    for is_main, addresses in sampler.stacks():
        frames = [symbols.find(address) for address in addresses]
        total += is_main
        part, function = part_of(frames)
        if part == "autograd" and any(re.search(SWITCHES, name) for _, name in frames[:4]):
            waits += is_main
            continue
        active += not is_main
        parts[part] += 1
        functions[part, function.split("(")[0][-90:]] += 1
    parts[SWITCH] = max(0, waits - active)
    return {part: count / total for part, count in parts.most_common()}, functions


def make_step(optimizer: str, read: bool):
    import torch

    torch.manual_seed(0)
    layers = [m for _ in range(LAYERS) for m in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers[:-1]).to("mps")
    kinds = {"sgd": lambda p: torch.optim.SGD(p, 1e-3), "adamw": lambda p: torch.optim.AdamW(p, 1e-3, fused=True)}
    update = kinds[optimizer](model.parameters())
    x, target = torch.randn(BATCH, WIDTH, device="mps"), torch.randint(WIDTH, (BATCH,), device="mps")

    def step():
        update.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), target)
        loss.backward()
        update.step()
        return loss.item() if read else None

    return step


def seconds_a_step(step, seconds: float) -> float:
    """Of steps that begin and end with an idle device."""
    import torch

    torch.mps.synchronize()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for _ in range(10):
            step()
        count += 10
    torch.mps.synchronize()
    return (time.perf_counter() - begin) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    parser.add_argument("--seconds", type=float, default=20, help="of sampling (20)")
    parser.add_argument("--functions", type=int, default=12, help="that are listed (12)")
    parser.add_argument("--read", action="store_true", help="read the loss in every step")
    parser.add_argument("--save", action="store_true", help="write the figures into benchmarks/results")
    options = parser.parse_args()
    step = make_step(options.optimizer, options.read)
    seconds_a_step(step, options.seconds / 10)
    plain = seconds_a_step(step, options.seconds / 4)
    with Sampler() as sampler:
        sampled = seconds_a_step(step, options.seconds)
    parts, functions = shares(sampler)
    what = f"{LAYERS} layers of {WIDTH}, batch {BATCH}, {options.optimizer}{', loss read' if options.read else ''}"
    print(f"{what}: {1e6 * plain:.0f} us a step; {1e6 * sampled:.0f} while {sampler.taken} samples were taken\n")
    rows = {part: [1e6 * plain * share, 100 * share] for part, share in parts.items()}
    print("| part | us a step | % |\n|---|---|---|")
    for part, (microseconds, percent) in rows.items():
        print(f"| {part} | {microseconds:.1f} | {percent:.1f} |")
    print("\nMost samples:")
    for (part, function), count in functions.most_common(options.functions):
        print(f"  {100 * count / max(1, sampler.taken):5.1f} %  {part}: {function}")
    if options.save:
        notes = (f"{what}; {1e6 * plain:.0f} us a step, {1e6 * sampled:.0f} while sampled.",)
        results.save(results.device_facts("mps"), None, "Host time of a small training step", ["us", "%"], rows, notes)


if __name__ == "__main__":
    main()
