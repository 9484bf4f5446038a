"""Training steps of whole networks, eager and compiled, in ms; the first compiled step, in s.

The peer is CUDA with its own torch.compile in the same run: ANYMPS_PEER_PYTHON.
ANYMPS_BENCHMARK_NETWORKS="BERT-base,ResNet50" chooses networks.
"""

import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "models")]
import peer  # noqa: E402


def measure(device):
    import torch
    from networks import NETWORKS

    wanted = os.environ.get("ANYMPS_BENCHMARK_NETWORKS", ",".join(NETWORKS)).split(",")
    figures = {}
    for name in wanted:
        for amp in (True, False):
            torch.manual_seed(0)
            torch._dynamo.reset()
            model, loss_of = NETWORKS[name](device)
            model.to(device).train()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
            compiled = torch.compile(model)
            for kind, module in (("eager", model), ("compiled", compiled)):

                def step(module=module, loss_of=loss_of, optimizer=optimizer, amp=amp):
                    with torch.autocast(device, torch.bfloat16, enabled=amp):
                        loss = loss_of(module)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

                key = f"{name}, {'AMP bf16' if amp else 'fp32'}, {kind}"
                try:
                    start = time.perf_counter()
                    step()
                    peer.synchronize(device)
                    if module is compiled:
                        figures[f"{key}, first step (s)"] = time.perf_counter() - start
                    figures[key] = 1e3 * peer.median_seconds(step, device, peer.stream_length(step, device, 0.3), 5)
                except Exception as error:
                    print(f"{key} on {device}: {type(error).__name__}: {error}"[:600], file=sys.stderr, flush=True)
    return figures


if __name__ == "__main__":
    peer.run(measure, "ms", "Training steps")
