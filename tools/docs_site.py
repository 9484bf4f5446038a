"""Hooks of mkdocs.yml: what a page of the repository and a page of the site do not have in common."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[([^]]*)\]\(([^)#:]+)\)")


def on_config(config):
    """Pages that mkdocs.yml does not place come last in the navigation."""
    docs = Path(config["docs_dir"])
    placed = set(re.findall(r"[\w/]+\.md", str(config["nav"])))
    others = sorted(str(path.relative_to(docs)) for path in docs.rglob("*.md"))
    others = [name for name in others if name not in placed]
    if others:
        config["nav"].append({"More": others})
    return config


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Links to files outside of docs/ become the file's name: the site does not have them.

    Raises FileNotFoundError for a link to nothing.
    """
    folder = (Path(config["docs_dir"]) / page.file.src_uri).parent

    def named(link: re.Match) -> str:
        target = (folder / link[2]).resolve()
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {link[2]}, which does not exist.")
        if target.is_relative_to(Path(config["docs_dir"]).resolve()):
            return link[0]
        return f"{link[1]} (`{target.relative_to(ROOT)}`)"

    return LINK.sub(named, markdown)
