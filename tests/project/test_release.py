"""What a release is checked for: tools/wheel_platform.py and tools/check_wheel.py, over real libraries."""

import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from torch_anymps import _load

ROOT = Path(__file__).resolve().parents[2]


def tool(name):
    """A module of tools/, which finds its neighbours."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(ROOT / "tools"))


wheel_platform = tool("wheel_platform")
check_wheel = tool("check_wheel")


def readelf(*arguments):
    return subprocess.run(["readelf", "--wide", *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def library(tmp_path):
    """Compiles C with g++ into a shared library; its path."""

    def build(source, *options):
        path = tmp_path / "libsample.so"
        command = ["g++", "-x", "c", "-", "-shared", "-fPIC", "-O0", "-o", path, *options]
        subprocess.run(command, input=source, text=True, check=True)
        return path

    return build


@pytest.fixture
def core():
    """The library of this installation."""
    minor = _load.built_for()[-1].replace(".", "_")
    return _load.package_file(_load.LIBRARY.format(minor))


def check_against_readelf(path):
    elf = wheel_platform.read_elf(path.read_bytes())
    dynamic = readelf("--dynamic", path)
    assert elf.needed == re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert elf.run_paths == re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", dynamic)
    needs = readelf("--version-info", path).partition("Version needs section")[2]
    assert {v for names in elf.versions.values() for v in names} == set(re.findall(r"  Name: (\S+)", needs))
    symbols = re.findall(r" UND (\S+)", readelf("--dyn-syms", path))
    assert elf.undefined == {symbol.partition("@")[0] for symbol in symbols}
    return elf


def test_an_elf_file_is_read_as_readelf_reads_it(library):
    source = '#include <math.h>\n#include <stdio.h>\ndouble f(double x) { puts(""); return cos(x); }\n'
    elf = check_against_readelf(library(source, "-lm", "-Wl,-rpath,/nowhere"))
    assert elf.run_paths == ["/nowhere"]
    assert "libm.so.6" in elf.needed and {"cos", "puts"} <= elf.undefined


def test_the_core_library_needs_no_private_ones(core):
    elf = check_against_readelf(core)
    assert not check_wheel._library_violations("torch_anymps/libtorch_anymps_2_13.so", elf)
    assert not [symbol for symbol in elf.undefined if symbol.startswith(("Py", "_Py"))]  # any Python loads it


@pytest.mark.parametrize(
    ("version", "glibc"),
    [
        ("GLIBC_2.2.5", 17),
        ("GLIBC_2.17", 17),
        ("GLIBC_2.34", 34),
        ("GLIBC_ABI_DT_RELR", 36),
        ("GLIBCXX_3.4", 17),
        ("GLIBCXX_3.4.20", 24),
        ("GLIBCXX_3.4.30", 35),
        ("CXXABI_1.3.13", 34),
        ("GCC_3.0", 17),
        ("GCC_12.0.0", 35),
    ],
)
def test_the_oldest_glibc_of_a_symbol_version(version, glibc):
    assert wheel_platform.baseline(version) == glibc


@pytest.mark.parametrize("version", ["GLIBCXX_3.4.99", "CXXABI_FLOAT128", "OPENSSL_3.0.0"])
def test_symbol_versions_that_no_table_has(version):
    with pytest.raises(wheel_platform.PlatformError, match=re.escape(version)):
        wheel_platform.baseline(version)


def test_what_is_no_library():
    for content in (b"", b"#!/bin/sh\n" + bytes(100)):
        with pytest.raises(wheel_platform.PlatformError, match="no 64-bit"):
            wheel_platform.read_elf(content)


@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="needs the package g++-aarch64-linux-gnu")
def test_a_library_of_the_other_processor(tmp_path):
    path = tmp_path / "lib.so"
    subprocess.run(
        ["aarch64-linux-gnu-gcc", "-x", "c", "-", "-shared", "-fPIC", "-o", path],
        input='#include <stdio.h>\nvoid f(void) { puts(""); }\n',
        text=True,
        check=True,
    )
    elf = check_against_readelf(path)
    assert wheel_platform.platform_of({"lib.so": elf})[0] == "manylinux_2_17_aarch64"


@pytest.fixture
def wheel(tmp_path, library):
    """Merges a wheel of a library, by default a small one, with what a release has, but for the members left out."""

    def make(*left_out, core=None, extra=None):
        small = library("void f(void) {}\n").read_bytes()
        minors = check_wheel._minors([re.search(r'"(torch>=.*?)"', (ROOT / "pyproject.toml").read_text())[1]])
        info = f"torch_anymps-{check_wheel._version()}.dist-info"
        members = {
            "torch_anymps/kernels.bin": b"kernels",
            f"{info}/METADATA": f"Name: torch-anymps\nVersion: {check_wheel._version()}\n"
            f"Requires-Dist: torch<2.{int(minors[-1][2:]) + 1},>=2.{minors[0][2:]}\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n",
            f"{info}/licenses/NOTICE": b"licenses",
        }
        for minor in minors:
            members[f"torch_anymps/libtorch_anymps_{minor}.so"] = core.read_bytes() if core else small
            members[f"torch_anymps/_launcher_{minor}.abi3.so"] = small
            members[f"{info}/sboms/torch_anymps_{minor}.cdx.json"] = b'{"bomFormat": "CycloneDX"}'
        path = tmp_path / "build" / f"torch_anymps-{check_wheel._version()}-py3-none-linux_x86_64.whl"
        path.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in {**members, **(extra or {})}.items():
                if name not in left_out:
                    archive.writestr(name, content)
            archive.writestr(f"{info}/RECORD", "")
        command = [sys.executable, ROOT / "tools" / "merge_wheels.py", path, "--out", tmp_path / "dist"]
        subprocess.run(command, check=True, capture_output=True)
        [merged] = (tmp_path / "dist").iterdir()
        return merged

    return make


def test_a_merged_wheel_is_named_for_what_it_needs(wheel, core):
    merged = wheel(core=core)
    platform, _ = wheel_platform.platform_of({core.name: wheel_platform.read_elf(core.read_bytes())})
    assert merged.name == f"torch_anymps-{check_wheel._version()}-py3-none-{platform}.whl"
    with zipfile.ZipFile(merged) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/WHEEL")]
        assert archive.read(name).decode().endswith(f"\nTag: py3-none-{platform}\n")
    assert [v for v in check_wheel.violations(merged) if "bytes; " not in v] == []


def test_what_a_wheel_lacks(wheel):
    found = "\n".join(check_wheel.violations(wheel("torch_anymps/kernels.bin")))
    assert "torch_anymps/kernels.bin is missing." in found


def test_a_wheel_with_a_private_library(wheel, library):
    other = library("void f(void);\nvoid g(void) { f(); }\n", "-Wl,-rpath,/nowhere").read_bytes()
    found = "\n".join(check_wheel.violations(wheel(extra={"torch_anymps.libs/libsample.so": other})))
    assert "torch_anymps.libs/libsample.so looks for libraries in /nowhere." in found
    assert "torch_anymps.libs/libsample.so is not expected." in found
