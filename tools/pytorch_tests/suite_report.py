#!/usr/bin/env python3
"""Counts what `run.py run --suite inductor` (or distributed) found, by reason, and writes a page from stored counts.

    suite_report.py inductor failures OUT.json [--cpu CPU.json]     what fails on mps, by error and place
    suite_report.py inductor store OUT.json docs/inductor_tests/lavapipe.json --tests "of PyTorch 2.13" [--cpu CPU.json]
    suite_report.py inductor page [--check]

A test that fails on the CPU too is not counted: it is of another version of PyTorch, or of another machine. The other
reasons stand in SUITE_exceptions.yaml.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
EXAMPLES = 3
LINES = " / "  # as in harness.py, which needs torch
OTHER_VERSION = "fails on the CPU too: of another version of PyTorch, or of another machine"
# What fails on the CPU for want of a device, or in an operator that only the CPU has, says nothing of mps.
OF_CPU_ALONE = re.compile(r"Cannot access accelerator device|_for_cpu\b")
FLOAT64 = "needs float64, which the device lacks as Apple's does"
NO_REASON = "no reason is listed"
OUTCOMES = ("passed", "to do", "not counted", "skipped", "not run")


@dataclass(frozen=True)
class Suite:
    name: str  # of run.py
    page: Path
    title: str
    tests: str  # what they are, in words

    @property
    def stores(self) -> Path:
        return ROOT / "docs" / f"{self.name}_tests"

    @cached_property
    def exceptions(self) -> list[dict]:
        """Rows of NAME_exceptions.yaml, whose first lines explain them; patterns are compiled."""
        rows = yaml.safe_load((HERE / f"{self.name}_exceptions.yaml").read_text()) or []
        return [{**row, **{key: re.compile(row.get(key, "")) for key in ("test", "message")}} for row in rows]


INDUCTOR = Suite("inductor", ROOT / "docs" / "compile_coverage.md", "torch.compile", "PyTorch's test/inductor")
DISTRIBUTED = Suite(
    "distributed",
    ROOT / "docs" / "distributed_coverage.md",
    "torch.distributed",
    "PyTorch's test/distributed",
)
SUITES = {suite.name: suite for suite in (INDUCTOR, DISTRIBUTED)}


def verdict(suite: Suite, key: str, entry: dict, cpu: dict) -> tuple[str, str]:
    """Outcome (one of OUTCOMES) and reason of a test; what passed or was not run has none."""
    if entry["outcome"] in ("passed", "not run"):
        return entry["outcome"], ""
    message = entry.get("message", "")
    rows = (row for row in suite.exceptions if row["test"].search(key) and row["message"].search(message))
    row = next(rows, None)
    if entry["outcome"] == "skipped":
        return "skipped", row["reason"] if row else NO_REASON
    on_cpu = cpu.get(key, {})
    if on_cpu.get("outcome") == "failed" and not OF_CPU_ALONE.search(on_cpu.get("message", "")):
        return "not counted", OTHER_VERSION
    if row:
        return "not counted" if row.get("counted") is False else "to do", row["reason"]
    if entry.get("needs") == "float64":
        return "not counted", FLOAT64
    return "to do", NO_REASON


def read(path: Path | None) -> dict:
    return json.loads(path.read_text())["outcomes"] if path else {}


def store(suite: Suite, found: dict, cpu: dict, tests: str) -> dict:
    """Counts by file and outcome, and by outcome and reason with a few examples."""
    counts: dict[str, Counter] = defaultdict(Counter)
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key, entry in found["outcomes"].items():
        outcome, reason = verdict(suite, key, entry, cpu)
        counts[key.split("::")[0]][outcome] += 1
        if reason:
            reasons[outcome, reason].append(key.split("::")[-1].removesuffix("_DEVICE"))
    rows = [
        {"outcome": outcome, "reason": reason, "count": len(names), "examples": sorted(names)[:EXAMPLES]}
        for (outcome, reason), names in sorted(reasons.items(), key=lambda item: (item[0][0], -len(item[1])))
    ]
    by_file = {file: dict(count) for file, count in sorted(counts.items())}
    return {"torch": found["torch"], "device": found["device"], "tests": tests, "counts": by_file, "reasons": rows}


def failures(suite: Suite, outcomes: dict, cpu: dict) -> str:
    """Markdown: what is to do, by error line without its numbers, the largest groups first."""
    groups: dict[str, list[tuple[str, dict]]] = defaultdict(list)
    for key, entry in outcomes.items():
        outcome, reason = verdict(suite, key, entry, cpu)
        if outcome == "to do":
            error = entry.get("message", "").split(LINES)[0]
            error = re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?(e-?\d+)?|'/tmp\S+'", "#", error)
            groups[f"{reason}: {error}" if reason != NO_REASON else error].append((key, entry))
    lines = []
    for error, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        places = Counter(entry["where"] for _, entry in members if "where" in entry)
        lines.append(f"\n### {len(members)} x {error[:200]}\n")
        if places:
            lines.append("at " + ", ".join(f"{place} ({count})" for place, count in places.most_common(3)) + "\n")
        lines += [f"- {key.split('::', 1)[1]}: {entry.get('message', '')[:240]}" for key, entry in members]
    return "\n".join(lines)


def share(counts: Counter) -> str:
    total = counts["passed"] + counts["to do"]
    return f"{100 * counts['passed'] / total:.1f} %" if total else "-"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def prose(text: str) -> str:
    """A paragraph in lines of 120 columns; links stay whole."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def section(stored: dict) -> str:
    counts = {file: Counter(count) for file, count in stored["counts"].items()}
    counts["all"] = sum(counts.values(), Counter())
    rows = "".join(
        f"| {file} | {' | '.join(str(count[outcome]) for outcome in OUTCOMES)} | {share(count)} |\n"
        for file, count in counts.items()
    )
    tests = f"Tests {stored['tests']}, torch {stored['torch']}."
    texts = [
        f"## {stored['device']}\n\n{prose(tests)}\n\n"
        f"| file | {' | '.join(OUTCOMES)} | passed, of what counts |\n|---|{'---|' * 6}\n{rows}"
    ]
    for outcome in ("to do", "not counted", "skipped"):
        reasons = [row for row in stored["reasons"] if row["outcome"] == outcome]
        if reasons:
            texts.append(f"{outcome.capitalize()}, by reason:\n\n| reason | tests | examples |\n|---|---|---|\n")
            texts[-1] += "".join(
                f"| {cell(row['reason'])} | {row['count']} | {', '.join(f'`{name}`' for name in row['examples'])} |\n"
                for row in reasons
            )
    return "\n".join(texts)


def page(suite: Suite) -> str:
    stores, exceptions = suite.stores.name, f"{suite.name}_exceptions.yaml"
    origin = prose(f"""
        Written by [tools/pytorch_tests/suite_report.py](../tools/pytorch_tests/suite_report.py) from the counts in
        [{stores}]({stores}), which come from runs of {suite.tests} on mps. *Not counted* is what fails for a reason
        that no code of this project can remove, *skipped* what the tests skip themselves; the reasons stand in
        [{exceptions}](../tools/pytorch_tests/{exceptions}).""")
    head = f"# What PyTorch's own tests say of {suite.title}\n\n{origin}\n"
    return "\n".join([head, *(section(json.loads(path.read_text())) for path in sorted(suite.stores.glob("*.json")))])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=SUITES)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("failures", "store"):
        command = commands.add_parser(name)
        command.add_argument("found", type=Path)
        if name == "store":
            command.add_argument("store", type=Path)
            command.add_argument("--tests", default="", help="which tests these are, in words")
        command.add_argument("--cpu", type=Path, help="outcomes of the same tests on the CPU")
    paging = commands.add_parser("page")
    paging.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    args = parser.parse_args()
    suite = SUITES[args.suite]
    if args.command == "page":
        if args.check:
            return 0 if suite.page.read_text() == page(suite) else 1
        suite.page.write_text(page(suite))
        return 0
    found = json.loads(args.found.read_text())
    if args.command == "failures":
        print(failures(suite, found["outcomes"], read(args.cpu)))
        return 0
    args.store.parent.mkdir(exist_ok=True)
    args.store.write_text(json.dumps(store(suite, found, read(args.cpu), args.tests), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
