"""`python -m torch_anymps`: the commands there are."""

from __future__ import annotations

COMMANDS = {
    "info": "which device mps is and what it can do, or why there is none and what to do",
    "check": "two minutes on this GPU: operators and a training step against the CPU, speeds, a report for an issue",
    "tune": "measures tiles for the products and convolutions of a script on this GPU",
    "report": "one page of HTML about a trace of torch.profiler",
}


def main() -> int:
    print("PyTorch's mps device on any GPU with a Vulkan driver.\n")
    for name, what in COMMANDS.items():
        print(f"  python -m torch_anymps.{name:<8}{what}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
