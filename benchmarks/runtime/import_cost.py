"""Cost of the backend over a bare `import torch`, and of the first operator: seconds of whole processes."""

import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import results  # noqa: E402


def seconds(code, environment, repeats=5):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **environment})
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    bare = seconds("import torch", {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    loaded = seconds("import torch", {})
    first = seconds("import torch; (torch.ones(5, device='mps') * 2).cpu()", {})
    if "--save" in sys.argv:
        rows = {"import torch": [bare, loaded - bare], "first operator": [None, first - loaded]}
        columns = ["bare PyTorch, s", "torch-anymps adds, s"]
        results.save(results.device_facts("mps"), None, "Cost of the package in a whole process", columns, rows)
    print(
        f"bare import torch {bare:.3f} s; with torch-anymps {loaded:.3f} s (+{loaded - bare:.3f});"
        f" first operator +{first - loaded:.3f} s"
    )


if __name__ == "__main__":
    main()
