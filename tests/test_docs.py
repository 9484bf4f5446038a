"""The documents quote live code: a block after a comment that names a file is in that file, letter by letter."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "csrc" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
QUOTE = re.compile(r"<!-- ([\w./]+\.\w+) -->\n```\w*\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\[[^]]*\]\(([^)#:]+)(?:#[^)]*)?\)")


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
    named = re.findall(r"`((?:csrc|shaders|tools|tests|ops|kernels|runtime|vulkan)/[\w./]+)`", text)
    roots = (ROOT, ROOT / "csrc")
    missing = [n for n in named if not any((root / n).exists() for root in roots) and "_<" not in n]
    assert not missing
