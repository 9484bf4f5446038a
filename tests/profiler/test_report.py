"""python -m torch_anymps.report: a page about a trace."""

from __future__ import annotations

import gzip
import json
from html.parser import HTMLParser

import pytest
import torch
from torch.profiler import profile

from torch_anymps import report, report_page

VOID = ("meta", "rect")


class Page(HTMLParser):
    """Checks that elements close in order; keeps the text of table rows."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "td":
            self.rows[-1][-1] += data


def parsed(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == [] and page.links == []
    return page


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 32)
        self.act = torch.nn.Tanh()

    def forward(self, x):
        return self.act(self.first(x)).sum()


@pytest.fixture(scope="module")
def trace(mps, tmp_path_factory):
    net = Net().to(mps)
    x = torch.randn(128, 64, device=mps)
    large = torch.randn(1024, 1024, device=mps)
    net(x).backward()
    torch.mps.synchronize()
    with profile(with_stack=True) as p:
        for _ in range(3):
            net(x).backward()
        # The device is still at work when item() asks, however late that is: a host that need not wait records no wait.
        for _ in range(4):
            product = large @ large
        product.sum().item()
    path = tmp_path_factory.mktemp("report") / "trace.json"
    p.export_chrome_trace(str(path))
    return path


def test_sums_agree_with_the_trace(trace):
    events = report.load(trace)
    found = report.analyse(events)
    commands = [e for e in events if e.get("cat") in report.DEVICE]
    assert sum(row.device for row in found.kernels) == pytest.approx(sum(e["dur"] for e in commands))
    assert sum(row.calls for row in found.kernels) == len(commands)
    assert sum(row.own for row in found.operators) == pytest.approx(sum(e["dur"] for e in commands), rel=0.02)
    assert 0 < found.busy <= found.length
    assert found.busy + sum(gap.length for gap in found.gaps) <= found.length + 1
    assert found.waited > 0
    assert any(found.device_strip) and max(found.device_strip + found.host_strip) <= 1
    width = found.length / report.BUCKETS
    assert sum(found.device_strip) * width == pytest.approx(found.busy, rel=0.02)


def test_modules_have_the_kernels_of_their_backward_too(trace):
    found = report.analyse(report.load(trace))
    events = report.load(trace)
    modules = {row.name.rsplit("_", 1)[0]: row for row in found.modules}
    tanh = sum(e["dur"] for e in events if e.get("cat") == "kernel" and e["name"].startswith("tanh"))
    assert modules["Tanh"].own == pytest.approx(tanh, rel=0.02)
    assert modules["Net"].device >= modules["Tanh"].device + modules["Linear"].device - 0.1
    assert modules["Tanh"].calls == 3


def test_page_stands_alone_and_is_well_formed(trace, run_python):
    done = run_python("-m", "torch_anymps.report", str(trace))
    assert done.returncode == 0, done.stderr
    path = trace.with_name("trace.html")
    assert done.stdout.strip() == str(path)
    text = path.read_text()
    page = parsed(text)
    names = [row[0] for row in page.rows if row]
    assert "tanh_f32_dense" in names and "aten::tanh" in names and any(n.startswith("Linear_") for n in names)
    assert "http" not in text


def test_names_are_escaped_and_rows_limited():
    rows = [report.Row(f"<script>{i}", calls=1, device=1.0, own=1.0) for i in range(9)]
    found = report.Report(length=10, busy=9, kernels=rows, operators=rows, device_strip=[0.5], host_strip=[0.0])
    page = parsed(report_page.html(found, "a<b", rows=4))
    assert [row[0] for row in page.rows if row] == [f"<script>{i}" for i in range(4)] * 2


def test_gaps_say_what_the_host_did():
    def event(name, cat, tid, ts, dur, pid=1, **args):
        return {"ph": "X", "name": name, "cat": cat, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}

    events = [
        event("aten::mm", "cpu_op", 7, 0, 5),
        event("vkCmdDispatch", "privateuse1_runtime", 7, 1, 1, correlation=1),
        event("matmul", "kernel", 0, 3, 10, pid=0, correlation=1, bytes=100, operations=50),
        event("aten::item", "cpu_op", 7, 6, 70),
        event("vkWaitSemaphores", "privateuse1_runtime", 7, 7, 3),
        event("aten::relu", "cpu_op", 7, 80, 8),
        event("vkCmdDispatch", "privateuse1_runtime", 7, 81, 1, correlation=2),
        event("relu", "kernel", 0, 83, 5, pid=0, correlation=2),
        event("aten::relu", "cpu_op", 7, 200, 8),
        event("vkCmdDispatch", "privateuse1_runtime", 7, 201, 1, correlation=3),
        event("relu", "kernel", 0, 203, 5, pid=0, correlation=3),
    ]
    found = report.analyse(events)
    assert [(g.before, g.begin, g.length, g.host) for g in found.gaps] == [
        ("relu", 88, 115, "between operators (Python)"),
        ("relu", 13, 70, "aten::item"),
    ]
    assert [(r.name, r.calls, r.device) for r in found.kernels] == [("matmul", 1, 10), ("relu", 2, 10)]
    assert found.waited == 3 and found.length == 208 and found.busy == 20


@pytest.mark.parametrize(
    "content, sentence",
    [(b"no json", "is no trace"), (b"{}", "is no trace"), (b"[1]", "is no trace"), (b'{"traceEvents": []}', "no comm")],
)
def test_other_files_are_refused_in_a_sentence(tmp_path, capsys, content, sentence):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    assert report.main([str(path)]) == 1
    assert sentence in capsys.readouterr().err
    assert report.main([str(tmp_path / "absent.json")]) == 1
    assert "absent.json" in capsys.readouterr().err


def test_compressed_traces(trace, tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(trace.read_bytes()))
    assert report.main([str(path), "--output", str(tmp_path / "page.html")]) == 0
    assert report.load(path) == report.load(trace) == json.loads(trace.read_text())["traceEvents"]
