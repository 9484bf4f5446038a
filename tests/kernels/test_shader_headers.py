"""What hosts know of kernels comes from the shaders: a field that moves, a constant or a kernel that is not there ends
the compilation of the host, not a run."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from configured_build import ROOT, compiler_flags


def headers_of(build: Path, folder: Path, shader: str, text: str) -> str:
    """Writes the header of one shader; returns what the tool complains of."""
    shaders, headers = folder / "shaders", folder / "anymps" / "shaders"
    shutil.copytree(ROOT / "shaders", shaders, dirs_exist_ok=True)
    (shaders / shader).write_text(text)
    tool = [build / "bin" / "shader_headers", "--include", shaders, "--output", headers, shaders / shader]
    result = subprocess.run(tool, capture_output=True, text=True)
    assert (result.returncode == 0) == (result.stderr == "")
    for header in headers.rglob("*.h"):
        if header not in ((headers / shader).with_suffix(".h"), headers / "instances.h"):
            header.unlink()  # without the structs that other shaders reach
    return result.stderr


def errors(build: Path, first: Path, source: Path) -> str:
    """What the C++ compiler says of a host; headers in `first` come before those of the build."""
    flags = compiler_flags(build, "ops/fill.cpp")
    command = [flags[0], f"-I{first}", *flags[1:], "-O0", "-fsyntax-only", source]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode == 0) == (": error:" not in result.stderr)
    return result.stderr


def test_a_host_does_not_compile_with_a_field_moved(tmp_path, build):
    shader, fields = "softmax/softmax_rows.slang", "uint64_t x, y;"
    text = (ROOT / "shaders" / shader).read_text()
    assert fields in text
    header = Path("anymps/shaders/softmax/softmax_rows.h")
    assert headers_of(build, tmp_path, shader, text) == ""
    assert (tmp_path / header).read_text() == (build / "generated" / header).read_text()
    assert headers_of(build, tmp_path, shader, text.replace(fields, "uint64_t y, x;")) == ""
    found = errors(build, tmp_path, ROOT / "csrc/ops/softmax/softmax.cpp")
    assert "designator order for field" in found or "declaration order" in found, found


HEAD = "#include <anymps/shaders/reduction/scan.h>\nusing namespace anymps;\n"


def test_names_are_checked(tmp_path, build):
    """A function a line, in one source: to read PyTorch's headers takes the compiler ten seconds."""
    cases = [
        (
            "constexpr kernels::KernelFamily k(FAMILY, {'scan_rows'}, {'_f32', '_i64'});"
            "k(0, 1).call({.lanes = 4}).dispatch(args, kernels::Grid::linear(1));",
            None,
        ),
        ("shaders::scan::scan_rows_f32.call({.lane = 4});", "lane"),
        ("shaders::scan::scan_rows_f64.call({.lanes = 4});", "scan_rows_f64"),
        ("shaders::scan::scan_rows_f32.call({.lanes = 4}).dispatch(args.rows, kernels::Grid::linear(1));", "dispatch"),
        ("constexpr kernels::KernelFamily k(FAMILY, {'scan_rows'}, {'_f32', '_f64'});", "throw"),
    ]
    family = "shaders::scan::kernels_with<shaders::scan::ScanArgs>"
    source = tmp_path / "host.cpp"
    lines = [statement.replace("FAMILY", family).replace("'", '"') for statement, _ in cases]
    hosts = [f"void host_{i}(const shaders::scan::ScanArgs& args) {{ {line} }}\n" for i, line in enumerate(lines)]
    source.write_text(HEAD + "".join(hosts))
    found = errors(build, tmp_path, source)
    # What the compiler says of a function: up to what it says of the next one.
    said = dict(re.findall(r"In function .void host_(\d)\((.*?)(?=In function .void host_|\Z)", found, re.DOTALL))
    for i, (statement, error) in enumerate(cases):
        if error is None:
            assert str(i) not in said, found
        else:
            assert ": error:" in said[str(i)] and error in said[str(i)], (statement, found)


MADE_UP = """
struct Inner { uint a; uint16_t b; uint16_t rest; };
struct MadeUpArgs { uint64_t x; Inner inner[2]; uint8_t small; float4 v; };
[vk::constant_id(0)] const uint kWorkgroup = 64;
[vk::constant_id(3)] const bool kWideIndex = true;
static const uint kMaxCount = 3 * 4;
[shader("compute")] [numthreads(kWorkgroup, 1, 1)]
void made_up(uniform MadeUpArgs* args) { args.x = kWideIndex ? 1 : kMaxCount; }
[shader("compute")] [numthreads(kWorkgroup, 1, 1)]
void of_numbers(uniform uint64_t out, uniform float factor, uniform float2 v) { *(float2*)out = factor * v; }
//! struct Entry
struct Entry { uint64_t address; uint count; };
//! kernel tiles_{tile}_{dtype} = tiles<{dtype}, {tile}> for tile in 64x32=(64, 32), 16x8=(16, 8)
//!     for dtype in f32, i64
[shader("compute")] [numthreads(kWorkgroup, 1, 1)]
void tiles<T, let TILE_M : int, let TILE_N : int>(uniform uint64_t out) { *(uint*)out = TILE_M * TILE_N; }
"""
HOST = """
#include <anymps/shaders/instances.h>
#include <anymps/shaders/made_up.h>
using namespace anymps::shaders::made_up;
static_assert(sizeof(Inner) == 8 && offsetof(MadeUpArgs, v) == 28 && sizeof(MadeUpArgs) == 48 && kMaxCount == 12);
static_assert(Constants{}.workgroup == 64 && Constants{}.subgroup == 0 && Constants{}.wide_index);
static_assert(offsetof(OfNumbersArgs, v) == 16 && sizeof(Entry) == 16);
static_assert(tiles_instances.size() == 4 && tiles_instances[0].kernel == tiles_64x32_f32.name);
static_assert(tiles_instances[3].kernel == tiles_16x8_i64.name && tiles_instances[3].tile_n == 8);
void host() {
    const std::array<uint32_t, 4> values = Constants{.workgroup = 32}.values();
    made_up.call({.wide_index = values[3] != 0}).dispatch({.x = 1, .small = 2}, anymps::kernels::Grid::linear(1));
    of_numbers.call().dispatch(OfNumbersArgs{.out = 1, .v = {1, 2}}, anymps::kernels::Grid::linear(1));
}
"""


def test_layouts_and_defaults(tmp_path, build):
    """A struct behind a pointer, with a vector, an array and bytes that C++ leaves or would not leave by itself."""
    assert headers_of(build, tmp_path, "made_up.slang", MADE_UP) == ""
    source = tmp_path / "host.cpp"
    source.write_text(HOST)
    assert ": error:" not in errors(build, tmp_path, source)


def test_what_cpp_cannot_lay_out_is_refused(tmp_path, build):
    """Slang has no padding at the end of a struct in another; C++ has."""
    text = MADE_UP.replace(" uint16_t rest;", "")
    assert "field small begins in the padding" in headers_of(build, tmp_path, "made_up.slang", text)


def test_two_names_of_one_constant_are_refused(tmp_path, build):
    """A host that sets one by its name would set the other as well."""
    again = "[vk::constant_id(3)] const uint kOther = 1;\n[shader"
    text = MADE_UP.replace("[shader", again, 1).replace("kWideIndex ? 1", "kWideIndex ? kOther")
    assert "kWideIndex and kOther have the same id, 3" in headers_of(build, tmp_path, "made_up.slang", text)


@pytest.mark.parametrize(
    "row",
    [
        "kernel tiles_{tile} = tiles<float, {tile}, 32>",  # no values
        "kernel tiles_{tile} = tiles<float, {tile}, 32> for size in 64",
        "kernel tiles_64 = tiles<float, {tile}, 32> for tile in 64, 32",  # two kernels of one name
        "kernel tiles_64",
    ],
)
def test_rows_of_kernels_are_checked(tmp_path, build, row):
    complaint = headers_of(build, tmp_path, "made_up.slang", f"//! {row}\n{MADE_UP}")
    assert "made_up.slang:1: a line that starts with //! must read" in complaint
