"""What builds the package: for which PyTorch, and one wheel of several."""

import base64
import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MERGE = ROOT / "tools" / "merge_wheels.py"
COMMON = {
    "pkg/kernels.bin": b"kernels",
    "pkg-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: pkg\nVersion: 1\n",
    "pkg-1.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}


@pytest.fixture
def torch_requirement():
    pytest.importorskip("scikit_build_core", reason="a requirement of the build, not of the tests")
    spec = importlib.util.spec_from_file_location("build_backend", ROOT / "tools" / "build_backend.py")
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    return backend.torch_requirement


def test_a_build_serves_the_torch_that_is_installed(torch_requirement, tmp_path):
    (tmp_path / "torch-2.14.1+cu130.dist-info").mkdir()
    (tmp_path / "torch-2.14.1+cu130.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.14.1+cu130\n")
    assert torch_requirement(str(tmp_path)) == "torch==2.14.*"


def test_a_build_beside_no_torch_takes_what_the_package_serves(torch_requirement, tmp_path):
    requirement, project = torch_requirement(str(tmp_path)), (ROOT / "pyproject.toml").read_text()
    assert requirement.startswith("torch>=2.") and f'dependencies = ["{requirement}"]' in project


@pytest.fixture
def merged(tmp_path):
    """Makes a wheel of each dict of contents and runs the tool over them: its result, and the folder it writes to."""

    def run(*wheels, name="pkg-1-py3-none-any.whl"):
        paths = []
        for number, contents in enumerate(wheels):
            path = tmp_path / str(number) / name
            path.parent.mkdir()
            with zipfile.ZipFile(path, "w") as archive:
                for member, content in contents.items():
                    archive.writestr(member, content)
                archive.writestr("pkg-1.dist-info/RECORD", "".join(f"{member},,\n" for member in contents))
            paths.append(path)
        out = tmp_path / "dist"
        return subprocess.run([sys.executable, MERGE, *paths, "--out", out], capture_output=True, text=True), out / name

    return run


def test_one_wheel_of_several(merged, tmp_path):
    done, wheel = merged({**COMMON, "pkg/lib_2_13.so": b"old"}, {**COMMON, "pkg/lib_2_14.so": b"new"})
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert len(names) == len(set(names)) == 6
        assert (archive.read("pkg/lib_2_13.so"), archive.read("pkg/lib_2_14.so")) == (b"old", b"new")
        record = archive.read("pkg-1.dist-info/RECORD").decode().splitlines()
        assert sorted(line.split(",")[0] for line in record) == sorted(names)
        [line] = [line for line in record if line.startswith("pkg/lib_2_14.so,")]
        digest = base64.urlsafe_b64encode(hashlib.sha256(b"new").digest()).decode().rstrip("=")
        assert line == f"pkg/lib_2_14.so,sha256={digest},3"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel]
    installed = subprocess.run(command, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    assert (tmp_path / "site" / "pkg" / "lib_2_14.so").read_bytes() == b"new"


def test_parts_that_differ_are_no_wheel(merged):
    done, wheel = merged(COMMON, {**COMMON, "pkg/kernels.bin": b"others"})
    assert done.returncode == 1 and not wheel.exists()
    assert "pkg/kernels.bin differs between" in done.stderr
