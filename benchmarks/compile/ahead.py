"""Compiles networks in several processes, so that one that measures them finds them in the caches; measures them."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import queue
import subprocess
import sys
import time

import results
import zoo


def fill_caches(command: list[str], options: dict, items: list[tuple[str, str]], processes: int, seconds: float) -> int:
    """Runs a step of each item, (network, mode), in a process of its own; returns how many ran within `seconds`.

    `command` is that of zoo.collect(): its processes are told by `options["ahead"]` that nothing is to be measured.
    What fails here, for want of memory beside the others say, is compiled again by the process that measures.
    """
    end = time.perf_counter() + seconds
    # Each process has a thread of Python that is busy; PyTorch's own pools would add one a core.
    threads = max(1, (os.cpu_count() or 1) // processes)
    limits = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": str(threads)}
    environment = os.environ | limits | {"ANYMPS_COMPILE_THREADS": str(min(4, threads))}

    def run(item: tuple[str, str]) -> str | None:
        """What is wrong, or None."""
        network, mode = item
        if time.perf_counter() > end:
            return "no time was left"
        chosen = options | {"networks": [network], "modes": [mode], "ahead": True}
        worker, error = zoo.Worker(command, chosen, environment), None
        try:
            while said := worker.next(max(0.0, end - time.perf_counter())):
                error = error or said.get("error")
                if "end" in said:
                    worker.process.wait(30)  # it writes the driver's pipelines into the cache
                    return error or said["end"]
            return f"the process ended with {worker.process.wait()}"
        except (queue.Empty, subprocess.TimeoutExpired):
            return "no time was left"
        finally:
            worker.end()

    start = time.perf_counter()
    pool = concurrent.futures.ThreadPoolExecutor(processes)
    try:
        errors = list(pool.map(run, items))
    finally:
        pool.shutdown(cancel_futures=True)
    for (network, mode), error in zip(items, errors):
        if error:
            print(f"ahead: {network}, {mode}: {error.splitlines()[0]}", file=sys.stderr)
    ran = errors.count(None)
    print(f"{ran} of {len(items)} compiled ahead by {processes} processes in {time.perf_counter() - start:.0f} s")
    return ran


def measure(
    script: pathlib.Path, arguments, networks: list, modes_of, title: str, columns: list[str], **own_options
) -> None:
    """Compiles the chosen networks ahead, and has `script --work OPTIONS` measure them: prints rows, writes a file.

    `arguments` are the script's, with json for the file and ahead for the number of processes, 0 for none;
    `modes_of(network, options)` gives the modes that are compiled apart.
    """
    options = {
        "device": arguments.device,
        "networks": arguments.networks.split(",") if arguments.networks else [],
        "dtypes": arguments.dtype.split(","),
        "tiny": arguments.tiny,
        "seconds": arguments.seconds_per,
        "built_on": arguments.device,
        "ahead": False,
        "done": [],
        **own_options,
    }
    command = [str(script), "--work"]

    def begin(facts: dict) -> dict:
        print(f"{facts['name']}, PyTorch {facts['torch']}\n| network | {' | '.join(columns)} |")
        print("|---" * (len(columns) + 1) + "|")
        return results.record(facts, None, title + (", tiny" if arguments.tiny else ""), columns, {})

    path = pathlib.Path(arguments.json)
    path.unlink(missing_ok=True)
    if arguments.ahead:
        chosen = [n for n in networks if not options["networks"] or n.name in options["networks"]]
        items = [(n.name, mode) for n in chosen for mode in modes_of(n, options)]
        fill_caches(command, options, items, arguments.ahead, arguments.ahead_seconds)
    zoo.collect(command, options, arguments.limit, begin, columns, path)
