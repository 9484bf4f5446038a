"""`python -m torch_anymps.tune SCRIPT [ARGUMENTS]`: measures tiles for the products and convolutions of a script.

The script runs as it would by itself, but calls of the same product or convolution try all candidate tiles in turn,
and the GPU's time of each is taken. The winners go to the cache folder, into a file for this device and driver, and
later processes use them. A script that repeats its shapes some dozens of times, such as a hundred training steps, is
enough. `with Tuning():` does the same around any code.

`python -m torch_anymps.tune --device`: measures rates of this device (memory, launches, products), by which the cost
model plans what has not been tuned; some seconds, a minute on a slow device. Stored in the same folder, and printed as
a row for an issue.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import re
import runpy
import sys
from dataclasses import dataclass, field

from torch_anymps import _load, device_rates, info


@dataclass
class Tuning:
    """A context in which tiles are measured; when it ends, the winners are stored and used from then on.

    After an exception nothing is stored. Products and convolutions are slower meanwhile.

    Raises RuntimeError where no device is available, or where tiles are tuned or a profile is taken already.
    """

    winners: dict[str, str] = field(default_factory=dict)  # of this run: plan by problem
    untried: int = 0  # candidates that no call tried
    seconds_before: float = 0.0  # GPU time of one call of every problem, as the model would have it
    seconds_after: float = 0.0  # and as tuned

    def __enter__(self) -> Tuning:
        import torch

        _load.operators().start_profile()
        torch.ops.anymps.start_tuning()
        return self

    def __exit__(self, kind, *_) -> None:
        import torch

        trials = [line.split(" ") for line in torch.ops.anymps.stop_tuning()]
        times = _times_by_trial(json.loads(torch.ops.anymps.stop_profile()))
        measured = collections.defaultdict(dict)
        models = {}  # the first candidate is the model's
        for number, (problem, plan) in enumerate(trials, 1):
            models.setdefault(problem, plan)
            if number in times:
                measured[problem][plan] = times[number]
            else:
                self.untried += 1
        for problem, plans in measured.items():
            best = min(plans, key=plans.get)
            self.winners[problem] = best
            if models[problem] in plans:
                self.seconds_before += plans[models[problem]]
                self.seconds_after += plans[best]
        if kind is None:
            _store(self.winners)


def _times_by_trial(rows: list[dict]) -> dict[int, float]:
    """Seconds of one call by the trial's number: of the product and of the kernel that sums its parts."""
    times = collections.defaultdict(float)
    for row in rows:
        trial = re.search(r"; trial (\d+)$", row["shape"])
        if trial:
            times[int(trial[1])] += row["nanoseconds"] * 1e-9 / row["calls"]
    return times


def _store(winners: dict[str, str]) -> None:
    """Adds winners to the file of this device and driver; one of another device or driver is replaced."""
    import torch

    name, header = torch.ops.anymps.tiles_file()
    path = pathlib.Path(name)
    lines = path.read_text().splitlines() if path.exists() else []
    known = dict(line.split(" ", 1) for line in lines[1:] if " " in line) if lines[:1] == [header] else {}
    rows = sorted((known | winners).items())
    device_rates.write_lines(path, [header, *(f"{problem} {plan}" for problem, plan in rows)])
    torch.ops.anymps.reload_tiles()


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 2
    import torch

    if not torch.backends.mps.is_available():
        return info.main() or 1
    if sys.argv[1] == "--device":
        return device_rates.main()
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    tuning = Tuning()
    with tuning:
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
    print(
        f"tuned {len(tuning.winners)} products and convolutions: one call of each took "
        f"{tuning.seconds_before * 1e3:.3f} ms "
        f"with the tiles of the model, {tuning.seconds_after * 1e3:.3f} ms with the winners. "
        f"{tuning.untried} candidates were not tried: let the script run longer for them."
        f"\nstored in {torch.ops.anymps.tiles_file()[0]}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
