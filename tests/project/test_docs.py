"""The documents quote live code, name files and functions that exist, and show the figures of benchmarks/results.

A block after a comment that names a file is in that file, letter by letter.
"""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import render_performance  # noqa: E402

DOCUMENTS = [*sorted(ROOT.glob("*.md")), ROOT / "csrc" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUOTE = re.compile(r"<!-- ([\w./]+\.\w+) -->\n```\w*\n(.*?)```", re.DOTALL)
FOLDERS = "(?:csrc|shaders|tools|tests|benchmarks|cmake|torch_anymps|gemm|ops|kernels|runtime|vulkan|compiler|spirv)"
LINK_TEXT = re.compile(r"\[([^]]*)\]\([^)]*\)")
LINK = re.compile(r"\[[^]]*\]\(([^)#:]+)(?:#[^)]*)?\)")


def source(name):
    """A file that a document names from the root or from csrc."""
    return next((root / name for root in (ROOT, ROOT / "csrc") if (root / name).exists()), ROOT / name)


def quotes():
    for document in DOCUMENTS:
        for number, (path, block) in enumerate(QUOTE.findall(document.read_text()), 1):
            yield pytest.param(path, block, id=f"{document.name}-{number}")


@pytest.mark.parametrize(("path", "block"), list(quotes()))
def test_a_quote_is_live(path, block):
    assert block in (ROOT / path).read_text()


def test_adding_an_op_quotes_each_kind():
    quoted = {path for path, _ in QUOTE.findall((ROOT / "docs" / "adding_an_op.md").read_text())}
    assert {"csrc/ops/pointwise.yaml", "csrc/ops/reduction.yaml"} < quoted
    assert any(path.startswith("shaders/") for path in quoted)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    broken = [link for link in LINK.findall(document.read_text()) if not (document.parent / link).exists()]
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_sources_named_in_text_exist(document):
    """Paths such as `runtime/device.h` or `tools/anymps_codegen/` are files of the tree."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    named = re.findall(rf"`({FOLDERS}/[\w./]+)`", text)
    missing = [n for n in named if not source(n).exists() and "_<" not in n]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_named_with_their_file_exist(document):
    """`gemm/gemm.cpp: Gemm::run` names a word of that file, here Gemm and run."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    missing = []
    for path, name in re.findall(rf"`({FOLDERS}/[\w./]+): ([\w:]+)`", text):
        words = set(re.findall(r"\w+", source(path).read_text())) if source(path).exists() else set()
        missing += [f"{path}: {name}"] if not words.issuperset(filter(None, name.split(":"))) else []
    assert not missing


def anchors(document):
    """The fragments by which a page's headings are linked."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    headings = (LINK_TEXT.sub(r"\1", h).strip().lower() for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_name_headings_that_exist(document):
    links = re.findall(r"\[[^]]*\]\(([^)#:]*)#([^)]*)\)", document.read_text())
    pages = ((document.parent / page if page else document, heading) for page, heading in links)
    assert [heading for page, heading in pages if heading not in anchors(page)] == []


@pytest.mark.parametrize(
    "document",
    [path for path in DOCUMENTS if path.name != "supported_ops.md"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_prose_fits_in_120_columns(document):
    """Tables, code and the lists of docs/supported_ops.md may be longer."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    assert [line for line in text.splitlines() if len(line) > 120 and not line.startswith(("|", "<!--"))] == []


def test_figures_are_those_of_the_result_files():
    """tools/render_performance.py would write nothing else."""
    for name in render_performance.DOCUMENTS:
        text = (ROOT / name).read_text()
        assert render_performance.render(text) == text, f"{name}: run tools/render_performance.py"


def test_a_figure_changed_by_hand_is_put_right():
    text = (ROOT / "docs" / "performance.md").read_text()
    changed = re.sub(r"^(\| add \| )[\d.]+", r"\g<1>1234", text, flags=re.MULTILINE)
    assert changed != text
    assert render_performance.render(changed) == text


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").rglob("*.json")), ids=lambda path: path.stem)
def test_a_result_file_says_where_it_is_from(path):
    result = json.loads(path.read_text())
    assert (ROOT / "benchmarks" / "results" / path.parts[-3] / f"{result['benchmark']}.json") == path
    assert result["commit"] or result["recorded_in"]
    assert result["device"]["name"] and result["date"] and "clocks" in result
    assert all(len(figures) == len(result["columns"]) for figures in result["rows"].values())


def test_pages_stay_short():
    """But for one that a tool writes whole."""
    most = {"README.md": 110, "docs/performance.md": 150, "docs/supported_ops.md": None}
    names = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in DOCUMENTS}
    long = {n: lines for n, lines in names.items() if most.get(n, 220) is not None and lines > most.get(n, 220)}
    assert not long


def text_of(*folders, suffixes=(".cpp", ".h", ".py")):
    files = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)
    return "\n".join(path.read_text() for path in files)


def test_environment_variables_have_a_row_and_a_reader():
    documented = set(re.findall(r"`(ANYMPS_\w+\w)`", (ROOT / "docs" / "environment_variables.md").read_text()))
    read = set(
        re.findall(r"""(?:env|environment|environ|environ\.get)[([]"(ANYMPS_\w+)\"""", text_of("csrc", "torch_anymps"))
    )
    assert len(read) > 10 and read <= documented
    everywhere = text_of("csrc", "torch_anymps", "tests", "benchmarks")
    assert {name for name in documented if f'"{name}"' not in everywhere} == set()


def test_the_design_of_torch_compile_names_every_file():
    text = (ROOT / "docs" / "design" / "compile.md").read_text()
    files = {path.name for path in (ROOT / "torch_anymps" / "inductor").glob("*.py")}
    assert set(re.findall(r"`(\w+\.py)`", text)) == files
