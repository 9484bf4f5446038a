#!/usr/bin/env python3
"""Bytes a rank holds while a Llama trains: one rank alone against fully_shard on several.

    python benchmarks/distributed/memory.py [--ranks 2] [--layers 16] [--width 2048] [--tokens 512]

The defaults are the layers of a Llama of 1.2 billion parameters, in float32 with autocast to bfloat16, AdamW, a batch
of one sequence a rank. "state" is what is allocated between steps (parameters and moments), "backward" the most that
was allocated in forward and backward of the second step, which hold activations, what autocast casts of the weights,
and parameters and gradients of a layer or two, "optimizer" the most in the optimizer's step, with all gradients and one
more tensor of each parameter's size. Figures are of PyTorch's allocator, so that they do not depend on the device: a
software driver prints those of a GPU for nets that its memory holds (--width 512 --words 8000 --tokens 128: a 16th).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402
import results  # noqa: E402

FIGURES = {
    "state": "between steps",
    "backward": "peak of forward and backward",
    "optimizer": "peak of the optimizer's step",
}


def llama(layers: int, width: int, words: int, tokens: int):
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = max(width // 64, 1)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(heads // 4, 1),
        max_position_embeddings=tokens,
        use_cache=False,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def rank_main(alone: bool, options) -> None:
    """Prints JSON: bytes between steps and at the peaks of a step, of the rank that holds most, and the loss."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    if not alone:
        dist.init_process_group()
    torch.manual_seed(0)
    net = llama(options.layers, options.width, options.words, options.tokens)
    if not alone:
        for layer in net.model.layers:
            fully_shard(layer)
        fully_shard(net)
    net.to("mps")
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
    ids = torch.randint(options.words, (1, options.tokens), device="mps")

    def step() -> list[float]:
        """The loss, and the bytes of FIGURES."""
        found = [torch.accelerator.memory_allocated()]
        torch.accelerator.reset_peak_memory_stats()
        with torch.autocast("mps", torch.bfloat16):
            loss = net(input_ids=ids, labels=ids).loss
        loss.backward()
        found.append(torch.accelerator.max_memory_allocated())
        torch.accelerator.reset_peak_memory_stats()
        optimizer.step()
        found.append(torch.accelerator.max_memory_allocated())
        optimizer.zero_grad()
        return [loss.item(), *found]

    step()
    loss, *found = step()
    figures = torch.tensor(found, dtype=torch.float64)
    if not alone:
        dist.all_reduce(figures, dist.ReduceOp.MAX)
    if alone or dist.get_rank() == 0:
        parameters = sum(each.numel() for each in net.parameters())
        found = dict(zip(FIGURES, figures.tolist(), strict=True))
        print(json.dumps(found | {"loss": loss, "parameters": parameters, "facts": results.device_facts("mps")}))
    if not alone:
        dist.destroy_process_group()


def launch(ranks: int, arguments: list[str]) -> dict:
    several = peer.launcher(ranks) if ranks > 1 else []
    command = [sys.executable, *several, os.path.abspath(__file__), "--rank-of", str(ranks), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith('{"state"'):
            return json.loads(line)
    raise SystemExit(f"{ranks} ranks gave no result:\n{done.stdout}{done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--words", type=int, default=32000)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--save", action="store_true", help="write a result file (benchmarks/results.py)")
    parser.add_argument("--rank-of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        return rank_main(options.rank_of == 1, options)
    one, several = launch(1, sys.argv[1:]), launch(options.ranks, sys.argv[1:])
    title = f"Memory of a Llama of {one['parameters'] / 1e6:.0f} million parameters, {options.tokens} tokens a rank"
    columns = ["one rank, MiB", f"{options.ranks} ranks by fully_shard, MiB a rank", "ratio"]
    for figures in (one, several):
        figures["peak"] = max(figures[name] for name in FIGURES)
    rows = {
        what: [round(one[name] / 2**20), round(several[name] / 2**20), round(several[name] / one[name], 2)]
        for name, what in (FIGURES | {"peak": "peak of a step"}).items()
    }
    print(title)
    for what, (alone, sharded, ratio) in rows.items():
        print(f"{what:30}{alone:8} MiB alone{sharded:8} MiB on {options.ranks} ranks{ratio:8.2f}")
    if options.save:
        results.save(one["facts"], None, title, columns, rows)


if __name__ == "__main__":
    main()
