"""The page of torch_anymps.report: HTML with its style and its few lines of script inside."""

from __future__ import annotations

from html import escape

STYLE = """
:root { color-scheme: light dark; --line: #8884; --device: #3b82c4; --host: #d08a2e; }
body { font: 14px/1.45 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2.2rem }
table { border-collapse: collapse; width: 100% }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th { cursor: pointer; user-select: none } th.name, td.name { text-align: left; white-space: normal }
td.name { font-family: ui-monospace, monospace; font-size: 12.5px; word-break: break-word }
td.share { background: linear-gradient(to left, color-mix(in srgb, var(--device) 35%, transparent) var(--w), #0000 0) }
.strip { width: 100%; height: 46px; display: block; border-bottom: 1px solid var(--line) }
.facts { display: flex; flex-wrap: wrap; gap: 1.2rem 2.4rem } .facts b { display: block; font-size: 1.3rem }
p.note { opacity: .75 }
"""
# A click on a column's head sorts by it; numbers are in data-v.
SCRIPT = """
for (const th of document.querySelectorAll('th')) th.onclick = () => {
  const body = th.closest('table').tBodies[0], i = th.cellIndex, up = th.dataset.up = th.dataset.up === '1' ? '0' : '1';
  const value = row => row.cells[i].dataset.v === undefined ? row.cells[i].textContent : +row.cells[i].dataset.v;
  const order = (a, b) => value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0;
  body.append(...[...body.rows].sort((a, b) => up === '1' ? -order(a, b) : order(a, b)));
};
"""


def html(report, title: str, rows: int) -> str:
    """report: a torch_anymps.report.Report. rows: the most of each table."""
    sections = [
        _facts(report),
        "<h2>Device and host over time</h2>",
        _strip(report.device_strip, "device", report.length),
        _strip(report.host_strip, "host", report.length),
        "<p class=note>Height: the part of each time in which the device (above) had a command, and in which the "
        "busiest thread of the host (below) was in an operator and did not wait for the device.</p>",
        _kernels(report, rows),
        _owners("By operator", report.operators, rows, report.busy),
        _modules(report, rows),
        _gaps(report, rows),
    ]
    return (
        f"<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>{escape(title)}</title>"
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>\n"
        + "\n".join(sections)
        + f"\n<script>{SCRIPT}</script></body></html>\n"
    )


def time_text(microseconds: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.2f} {unit}"
    return f"{microseconds:.1f} us"


def _facts(report) -> str:
    share = report.busy / report.length if report.length else 0
    facts = [
        (time_text(report.length), "traced"),
        (f"{time_text(report.busy)} ({share:.0%})", "device busy"),
        (time_text(report.length - report.busy), "device idle"),
        (time_text(report.waited), "host waited for the device"),
        (str(sum(row.calls for row in report.kernels)), "commands"),
    ]
    verdict = (
        "The device is the limit: faster kernels, or fewer of them, make this faster."
        if share > 0.8
        else "The device waits for the host: larger batches, torch.compile or fewer .item() make this faster."
        if share < 0.5
        else "Device and host take turns: look at the gaps below."
    )
    boxes = "".join(f"<div><b>{escape(value)}</b>{escape(what)}</div>" for value, what in facts)
    return f"<div class=facts>{boxes}</div><p>{verdict}</p>"


def _strip(values: list[float], kind: str, length: float) -> str:
    bars = "".join(
        f'<rect x="{i}" y="{1 - value:.3f}" width="1" height="{value:.3f}"/>' for i, value in enumerate(values) if value
    )
    return (
        f'<svg class=strip viewBox="0 0 {len(values)} 1" preserveAspectRatio="none" fill="var(--{kind})" role="img">'
        f"<title>{kind} over {time_text(length)}</title>{bars}</svg>"
    )


def _table(heads: list[str], lines: list[list]) -> str:
    """Cells are text, or (number to sort by, text), or (number, text, share of 1)."""

    def cell(value, i: int) -> str:
        if isinstance(value, str):
            return f"<td{' class=name' if i == 0 else ''}>{escape(value)}</td>"
        bar = f' class=share style="--w:{value[2]:.1%}"' if len(value) == 3 else ""
        return f'<td{bar} data-v="{value[0]:.6g}">{escape(value[1])}</td>'

    head = "".join(f"<th{' class=name' if i == 0 else ''}>{escape(h)}</th>" for i, h in enumerate(heads))
    body = "".join(f"<tr>{''.join(cell(value, i) for i, value in enumerate(line))}</tr>\n" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"


def _time(microseconds: float, whole: float = 0) -> tuple:
    cell = (microseconds, time_text(microseconds))
    return (*cell, min(1.0, microseconds / whole)) if whole else cell


def _number(value: float, digits: int = 0) -> tuple:
    return (value, f"{value:,.{digits}f}" if value else "")


def _kernels(report, rows: int) -> str:
    lines = [
        [
            row.name,
            _time(row.device, report.busy),
            (row.device / report.busy, f"{row.device / report.busy:.1%}"),
            _number(row.calls),
            _time(row.device / row.calls),
            _number(row.bytes / row.device / 1e3 if row.device else 0, 1),
            _number(row.operations / row.device / 1e6 if row.device else 0, 2),
        ]
        for row in report.kernels[:rows]
    ]
    return "<h2>By kernel</h2>" + _table(["kernel", "device", "share", "calls", "each", "GB/s", "TFLOP/s"], lines)


def _owners(title: str, found: list, rows: int, busy: float) -> str:
    lines = [
        [row.name, _time(row.own, busy), _time(row.device), _number(row.calls), _time(row.host)] for row in found[:rows]
    ]
    return f"<h2>{title}</h2>" + _table(["name", "device, own", "device, with inner ones", "calls", "host"], lines)


def _modules(report, rows: int) -> str:
    if report.modules:
        return _owners("By module", report.modules, rows, report.busy)
    return "<h2>By module</h2><p class=note>The trace names no modules: profile with with_stack=True.</p>"


def _gaps(report, rows: int) -> str:
    lines = [[gap.before, _time(gap.length), _time(gap.begin), gap.host] for gap in report.gaps[: min(rows, 20)]]
    idle = sum(gap.length for gap in report.gaps)
    note = f"<p class=note>{len(report.gaps)} times, {time_text(idle)} together; the longest first.</p>"
    return "<h2>When the device had nothing to do</h2>" + note + _table(
        ["before", "length", "at", "the host meanwhile"], lines
    )  # fmt: skip
