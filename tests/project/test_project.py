"""Files for those who join the project say what is there: workflows, forms, presets, the version, the changelog."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(workflow):
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        yield from ((job, step) for step in job["steps"])


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_exists(workflow):
    """Targets of make, scripts of the tree and CMake presets, with each value of the job's matrix."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    presets = {p["name"] for p in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
    commands = []
    for job, step in steps(workflow):
        matrix = job.get("strategy", {}).get("matrix", {})
        command = step.get("run", "")
        values = [v for key in matrix if f"matrix.{key}" in command for v in matrix[key]]
        commands += [re.sub(r"\$\{\{ matrix\.\w+ \}\}", str(v), command) for v in values or [""]]
    text = "\n".join(commands)
    assert set(re.findall(r"^make ([\w-]+)", text, re.MULTILINE)) <= targets
    assert set(re.findall(r"--preset (\w+)", text)) <= presets
    scripts = re.findall(r"(?:^|\s)((?:tools|tests|examples)/[\w/.]+)", text)
    assert [name for name in scripts if not (ROOT / name).exists()] == []


def test_make_alone_lists_targets_and_builds_nothing():
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = re.findall(r"^make ([\w-]+)", done.stdout, re.MULTILINE)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test", "lint"} < set(listed) <= set(targets)


def test_workflows_cover_lint_tests_nights_and_releases():
    assert [path.stem for path in WORKFLOWS] == ["lint", "nightly", "release", "test"]


@pytest.mark.parametrize("form, command", [("bug", "info"), ("gpu", "check")])
def test_issue_forms_ask_for_a_report(form, command):
    fields = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{form}.yml").read_text())["body"]
    report = next(field for field in fields if f"python -m torch_anymps.{command}" in field["attributes"]["label"])
    assert report["validations"]["required"]


def test_the_version_is_written_once():
    version = re.search(r'^__version__ = "(.+)"$', (ROOT / "torch_anymps" / "__init__.py").read_text(), re.MULTILINE)[1]
    for name in ("pyproject.toml", "CMakeLists.txt", *(f"cmake/{p.name}" for p in (ROOT / "cmake").iterdir())):
        assert f'"{version}"' not in (ROOT / name).read_text(), name
    metadata = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in metadata and 'input = "torch_anymps/__init__.py"' in metadata


def test_the_changelog_has_a_section_to_come():
    sections = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == "Unreleased" and len(sections) == len(set(sections))


def test_pages_of_the_site_exist():
    """Others come last in the navigation: tools/docs_site.py."""
    text = (ROOT / "mkdocs.yml").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages >= set(re.findall(r"- ([\w/]+\.md)$", text, re.MULTILINE))


def test_result_files_refuse_rows_of_another_length():
    code = (
        "import sys; sys.path.insert(0, 'benchmarks'); import results\n"
        "results.save({'name': 'x'}, None, 'title', ['a', 'b'], {'row': [1]})"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "The row 'row' has 1 figures, and there are 2 columns." in done.stderr
