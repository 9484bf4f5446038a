"""Greedy decoding of one sequence with a cache of keys and values: GPT-2 of 124 million parameters, in tokens/s.

ANYMPS_DECODING_TOKENS: how many tokens follow the prompt of 64.
"""

import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import peer  # noqa: E402

PROMPT = 64
TOKENS = int(os.environ.get("ANYMPS_DECODING_TOKENS", "128"))


def decode(model, prompt, count: int):
    """The tokens that follow the prompt, each fed back alone."""
    import torch

    tokens, cache, found = prompt, None, []
    with torch.inference_mode():
        for _ in range(count):
            out = model(input_ids=tokens, past_key_values=cache, use_cache=True)
            cache, tokens = out.past_key_values, out.logits[:, -1:].argmax(-1)
            found.append(tokens)
    return torch.cat(found, 1)


def measure(device: str) -> dict[str, float]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    figures = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config()).eval().to(device, dtype)
        prompt = torch.randint(0, 50000, (1, PROMPT)).to(device)
        times = []
        for turn in range(3):
            peer.synchronize(device)
            start = time.perf_counter()
            decode(model, prompt, 4 if turn == 0 else TOKENS)  # the first to warm up
            peer.synchronize(device)
            times.append(time.perf_counter() - start)
        figures[str(dtype).split(".")[1]] = TOKENS / min(times[1:])
    return figures


if __name__ == "__main__":
    peer.run(measure, "tokens/s", "Greedy decoding", higher_is_better=True)
