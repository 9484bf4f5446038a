"""The zoo's process that measures: a line of JSON behind MARK for each thing that happens; zoo.py reads them.

{"facts": ...} once, {"begin": key} before a network is measured in one mode and precision, {"key", "figures"} or
{"key", "error"} after it, {"end": None or what is wrong with the options} at the end. The process ends when its
standard input does, so that it does not outlast its parent.
"""

from __future__ import annotations

import copy
import gc
import itertools
import json
import os
import pathlib
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import peer  # noqa: E402
import results  # noqa: E402

MARK = "zoo: "


def make_step(task, device: str, train: bool, amp: bool, compile_mode: str | None = None):
    """A function that makes one step of a Task whose tensors are on `device`, and returns the loss as a tensor."""
    import torch

    model, precision = task.model.train(train), torch.bfloat16
    called = torch.compile(model, mode=compile_mode) if compile_mode else model
    if not train:
        infer = task.infer or task.loss

        def step():
            with torch.no_grad(), torch.autocast(device, precision, enabled=amp):
                return infer(called, *task.batch)

        return step
    parameters = [p for p in model.parameters() if p.requires_grad]
    if task.optimizer == "sgd":
        optimizer = torch.optim.SGD(parameters, lr=1e-5, momentum=0.9, fused=True)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)

    def step():
        with torch.autocast(device, precision, enabled=amp):
            loss = task.loss(called, *task.batch)
        optimizer.zero_grad()
        loss.backward()
        if task.clip:
            torch.nn.utils.clip_grad_norm_(parameters, task.clip)
        optimizer.step()
        return loss.detach()

    return step


def build(network, tiny: bool):
    """The Task of a network on the CPU, with the same weights and data on every device; tiny ones have no dropout."""
    import torch

    torch.manual_seed(0)
    task = network.builder(tiny)
    for module in task.model.modules() if tiny else ():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    return task


def moved(task, device: str):
    """A copy of a Task on a device."""
    model = copy.deepcopy(task.model).to(device)
    return type(task)(**{**vars(task), "model": model, "batch": tuple(t.to(device) for t in task.batch)})


def figures(step, device: str, seconds: float) -> list[float]:
    """Median ms of a step, seconds of the first one, and the first loss: zoo.COLUMNS."""
    peer.synchronize(device)
    begin = time.perf_counter()
    loss = step().float().item()
    peer.synchronize(device)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    for _ in range(4):  # pipelines that are still being compiled, recordings of graphs
        step()
        if time.perf_counter() - begin > seconds:
            break
    inner = peer.stream_length(step, device, seconds / 8)
    return [1e3 * peer.median_seconds(step, device, inner, 5, warmup=1, busy=seconds / 4), first, loss]


def say(**what) -> None:
    print(MARK + json.dumps(what), flush=True)


def empty_cache(device: str) -> None:
    import torch

    gc.collect()
    if device != "cpu":
        getattr(torch, device).empty_cache()


def end_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock a process that ends by itself would wait for
        pass
    os._exit(1)


def serve(options: dict, networks: list, variants, measured) -> None:
    """Measures networks and says what happens: the process of a zoo.Worker.

    `variants(network)` is the modes and precisions of a network, and `measured(task, mode, precision)` the figures of
    one of them. `options`: device, tiny, `networks` (names; all where empty), `done` (keys not measured again),
    and `built_on`, the device on which weights are made: the CPU, unless another one is named.
    """
    threading.Thread(target=end_with_parent, daemon=True).start()
    import torch

    device, done = options["device"], set(options["done"])
    unknown = set(options["networks"]) - {network.name for network in networks}
    if unknown:
        say(end=f"{sorted(unknown)} are not in the zoo; it has {[network.name for network in networks]}")
        return
    say(facts=results.device_facts(device))
    for network in networks:
        if options["networks"] and network.name not in options["networks"]:
            continue
        left = {f"{network.trade} | {network.name} | {m} | {d}": (m, d) for m, d in variants(network)}
        left = {key: how for key, how in left.items() if key not in done}
        task = None
        for key, (mode, dtype) in left.items():
            say(begin=key)
            try:
                if task is None:
                    with torch.device(options.get("built_on", "cpu")):
                        task = build(network, options["tiny"])
                say(key=key, figures=measured(task, mode, dtype))
            except Exception as error:  # of any network, whatever it is: the others go on
                say(key=key, error=f"{type(error).__name__}: {error}"[:500])
            empty_cache(device)
    say(end=None)


def main(options: dict) -> None:
    """`options` are those of zoo.py."""
    import torch
    from zoo_networks import ZOO

    device = options["device"]

    def measured(task, mode: str, dtype: str) -> list[float]:
        torch._dynamo.reset() if options["compile"] else None
        step = make_step(moved(task, device), device, mode == "train", dtype == "amp", options["compile"])
        return figures(step, device, options["seconds"])

    serve(options, ZOO, lambda _: itertools.product(options["modes"], options["dtypes"]), measured)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
