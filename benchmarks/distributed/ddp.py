#!/usr/bin/env python3
"""Training steps of DistributedDataParallel and fully_shard on mps: one rank alone against several, beside CUDA's.

    python benchmarks/distributed/ddp.py [--ranks 2] [--nets bert gpt] [--ways ddp fully_shard] [--batch 64]
        [--trace FOLDER] [--save]

The nets have the sizes of BERT-base and of GPT-2 124M, in float32 parameters with autocast to bfloat16. A rank's batch
(8,192 tokens by default) is the same alone and among others, so the efficiency is the time alone by the time of
several. The last two columns are of a trace of one step by torch.profiler, in rank 0: how long collectives were under
way, and how much of that no other kernel ran. CUDA with NCCL, with and without access to the other GPUs' memory, is
measured where ANYMPS_PEER_PYTHON names a Python with a CUDA build of PyTorch. `--nets small` is one that a software
driver trains, of 512 tokens a rank: its ranks share the cores that one alone has, so an efficiency of 0.5 is all that
there is. --trace keeps the traces, for https://ui.perfetto.dev.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402
import results  # noqa: E402

STEPS, WARMUP = 12, 4
NETS = {  # layers, width, heads, words, tokens, causal
    "bert": (12, 768, 12, 30522, 128, False),
    "gpt": (12, 768, 12, 50304, 512, True),
    "small": (4, 128, 4, 1024, 64, False),
}
TOKENS = {"bert": 8192, "gpt": 8192, "small": 512}  # of a rank's batch
TITLES = {
    "bert": "BERT-base",
    "gpt": "GPT 124M",
    "small": "4 layers of 128 features",
    "ddp": "DistributedDataParallel",
    "fully_shard": "fully_shard",
}


def transformer(layers, width, heads, words, tokens, causal):
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            attention = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            x = x + self.out(attention.transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.norms[1](x))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(tokens, width))
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            x = self.embed(ids) + self.places
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Net()


def sharded(net):
    from torch.distributed.fsdp import fully_shard

    for block in net.blocks:
        fully_shard(block)
    return fully_shard(net)


def covered(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same spans in order, joined where they touch."""
    joined = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def length(spans: list[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in covered(spans))


def exposed(call, path: str | None) -> tuple[float, float]:
    """Of a trace of call(): microseconds that collectives were under way, and those in which nothing else ran."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, *supported_device()]) as trace:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = path or os.path.join(folder, "trace.json")
        trace.export_chrome_trace(path)
        with open(path) as file:
            events = json.load(file)["traceEvents"]
    collectives, others = [], []
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            span = (event["ts"], event["ts"] + event["dur"])
            is_collective = event["name"].startswith(("anymps:", "nccl"))
            (collectives if is_collective else others).append(span)
    return length(collectives), length(collectives + others) - length(others)


def supported_device() -> list:
    from torch.profiler import ProfilerActivity, supported_activities

    return [each for each in (ProfilerActivity.CUDA,) if each in supported_activities()]


def step_figures(device: str, way: str, shape: tuple, batch: int, trace: str | None) -> dict:
    """Median seconds of a training step, the last loss, and the microseconds of exposed(), whose trace may be kept."""
    import torch
    from torch.nn import functional as F

    torch.manual_seed(0)
    net = transformer(*shape).to(device)
    if way == "ddp":
        net = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    elif way == "fully_shard":
        net = sharded(net)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
    words, tokens = shape[3], shape[4]
    ids = torch.randint(words, (batch, tokens + 1)).to(device)
    wait = getattr(torch, device).synchronize
    times = []

    def step():
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wait()
        return loss

    for _ in range(STEPS + WARMUP):
        wait()
        start = time.perf_counter()
        loss = step()
        times.append(time.perf_counter() - start)
    figures = {"seconds": statistics.median(times[WARMUP:]), "loss": loss.item()}
    if way != "alone":
        figures["collectives"], figures["exposed"] = exposed(step, trace)
    return figures


def rank_main(device: str, way: str, net: str, options) -> None:
    import torch
    import torch.distributed as dist

    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if way != "alone":
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    shape, trace = NETS[net], None
    if options.trace and way != "alone" and dist.get_rank() == 0:
        how = "_without_peer_access" if os.environ.get("NCCL_P2P_DISABLE") == "1" else ""
        trace = os.path.join(options.trace, f"{net}_{way}_{device}{how}.json")
    figures = step_figures(device, way, shape, options.batch or TOKENS[net] // shape[4], trace)
    figures["facts"] = results.device_facts(device)
    if way == "alone" or dist.get_rank() == 0:
        print(json.dumps(figures), flush=True)
    if way != "alone":
        dist.destroy_process_group()


def launch(python: str, device: str, way: str, net: str, options, **env: str) -> dict | None:
    several = peer.launcher(options.ranks) if way != "alone" else []
    command = [python, *several, __file__, "--rank-of", device, way, net]
    command += ["--batch", str(options.batch)] if options.batch else []
    command += ["--trace", options.trace] if options.trace else []
    given = peer.peer_environment(python if device == "cuda" else None)
    done = subprocess.run(command, capture_output=True, text=True, env={**given, **env})
    for line in done.stdout.splitlines():
        if line.startswith('{"seconds"'):
            return json.loads(line)
    print(f"{device}, {way}, {net} gave no result:\n{done.stdout}{done.stderr}", file=sys.stderr)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=["bert", "gpt"])
    parser.add_argument("--ways", nargs="+", choices=("ddp", "fully_shard"), default=["ddp", "fully_shard"])
    parser.add_argument("--batch", type=int, help="sequences of a rank")
    parser.add_argument("--trace", metavar="FOLDER", help="keep rank 0's traces of a step, in Chrome's format")
    parser.add_argument("--save", action="store_true", help="write a result file (benchmarks/results.py)")
    parser.add_argument("--rank-of", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        return rank_main(*options.rank_of, options)
    if options.trace:
        os.makedirs(options.trace, exist_ok=True)
    platforms = [("mps", sys.executable, "mps", {})]
    if cuda := os.environ.get("ANYMPS_PEER_PYTHON"):
        platforms += [
            ("CUDA and NCCL", cuda, "cuda", {}),
            ("CUDA and NCCL without peer access", cuda, "cuda", {"NCCL_P2P_DISABLE": "1"}),
        ]
    columns = ["one rank, ms", f"{options.ranks} ranks, ms", "efficiency", "collectives, ms", "exposed, ms"]
    print(f"{'':68}" + "".join(f"{name:>17}" for name in columns))
    rows, facts = {}, {}
    for net in options.nets:
        alone = {}
        for name, python, device, env in platforms:
            if device not in alone:
                alone[device] = launch(python, device, "alone", net, options)
            for way in options.ways:
                several = launch(python, device, way, net, options, **env)
                if not alone[device] or not several:
                    continue
                facts[device] = several["facts"]
                one, all_ranks = alone[device]["seconds"], several["seconds"]
                cells = [1e3 * one, 1e3 * all_ranks, round(one / all_ranks, 2)]
                cells += [several["collectives"] / 1e3, several["exposed"] / 1e3]
                row = f"{TITLES[net]}, {TITLES[way]} | {name}"
                rows[row] = cells
                print(f"{row:68}" + "".join(f"{cell:17.2f}" for cell in cells), flush=True)
    if options.save:
        title = "Training steps, AMP bf16, a rank's batch the same"
        results.save(facts["mps"], facts.get("cuda"), title, columns, rows)


if __name__ == "__main__":
    main()
