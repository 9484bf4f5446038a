"""Training steps of whole networks, eager, compiled and replayed (mode="reduce-overhead"), in ms; first steps, in s.

The peer is CUDA with its own torch.compile in the same run: ANYMPS_PEER_PYTHON.
ANYMPS_BENCHMARK_NETWORKS="BERT-base,ResNet50" chooses networks, ANYMPS_BENCHMARK_MODES="eager,compiled" modes,
ANYMPS_BENCHMARK_PRECISIONS="amp,fp32" precisions.
"""

import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "models")]
import peer  # noqa: E402

MODES = {
    "eager": None,
    "compiled": {},
    "replayed": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
}
DEFAULT_MODES = ("eager", "compiled", "replayed")


def _chosen(what, names):
    return os.environ.get(f"ANYMPS_BENCHMARK_{what}", ",".join(names)).split(",")


def measure(device):
    import torch
    from networks import NETWORKS

    wanted = _chosen("NETWORKS", NETWORKS)
    figures = {}
    for name in wanted:
        for precision in _chosen("PRECISIONS", ("amp", "fp32")):
            torch.manual_seed(0)
            torch._dynamo.reset()
            model, loss_of = NETWORKS[name](device)
            model.to(device).train()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
            for mode in _chosen("MODES", DEFAULT_MODES):
                options = MODES[mode]
                module = model if options is None else torch.compile(model, **options)

                def step(module=module, loss_of=loss_of, optimizer=optimizer, amp=precision == "amp"):
                    with torch.autocast(device, torch.bfloat16, enabled=amp):
                        loss = loss_of(module)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

                key = f"{name}, {precision}, {mode}"
                try:
                    start = time.perf_counter()
                    step()
                    peer.synchronize(device)
                    figures[f"{key}, first step (s)"] = time.perf_counter() - start
                    for _ in range(4):
                        step()  # recording, pipelines that are still being compiled
                    figures[key] = 1e3 * peer.median_seconds(step, device, peer.stream_length(step, device, 0.3), 5)
                except Exception as error:
                    print(f"{key} on {device}: {type(error).__name__}: {error}"[:600], file=sys.stderr, flush=True)
    return figures


if __name__ == "__main__":
    peer.run(measure, "ms", "Training steps, eager and compiled")
