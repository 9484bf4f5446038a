"""One row of a table is a whole operator: in a tree with a made-up row, implementation, kernels and registration come
out of the generator, and the compilers take them. So are two rows a GEMM tile, and one a family of GPUs."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from configured_build import ROOT, compiler_flags

# With kernels that csrc/gemm/tile_sizes.h knows.
SHADERS_OF_TILES = ("gemm/matmul", "gemm/matmul_fragments", "gemm/matmul_packed", "gemm/matmul_scaled", "conv/conv")


def generate(tmp_path: Path, table: str, text: str) -> Path:
    ops, out = tmp_path / "ops", tmp_path / "generated"
    ops.mkdir()
    (ops / table).write_text(text)
    tool = [sys.executable, ROOT / "tools" / "gen_registration.py", "--ops", ops, "--out", out]
    result = subprocess.run(tool, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return out


def holding(folder: Path, pattern: str, text: str) -> list[Path]:
    return [path for path in folder.glob(pattern) if text in path.read_text()]


def kernels(build: Path, shader: Path) -> list[str]:
    compiler = [build / "bin" / "shader_compiler", "--include", ROOT / "shaders", "--check", shader]
    result = subprocess.run(compiler, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return [line.split()[0] for line in result.stdout.splitlines() if line.endswith("bytes")]


def check_cpp(build: Path, generated: Path, sources: list[Path]) -> None:
    """The C++ compiler's opinion of generated sources, with the flags of the build."""
    flags = compiler_flags(build, "ops/fill.cpp")
    unit = generated / "unit.cpp"
    unit.write_text("".join(f'#include "{source}"\n' for source in sources))
    command = [*flags[:1], f"-I{generated}", *flags[1:], "-O0", "-fsyntax-only", unit]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]


def changed_copy(path: str, folder: Path, old: str, new: str) -> Path:
    """A copy of a file in which `new` stands behind `old`."""
    text = (ROOT / path).read_text()
    assert text.count(old) == 1
    copy = folder / path
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(text.replace(old, old + new))
    return copy


def test_a_pointwise_row(tmp_path, build):
    row = '- {op: sinc.out, rule: unary_float, expr: "0.5f * self + self * self"}\n'
    out = generate(tmp_path, "pointwise.yaml", row)
    (shader,) = holding(out / "shaders", "pointwise_*.slang", "struct sinc_f32")
    assert "0.5f * self + self * self" in shader.read_text()
    assert {"sinc_f32_dense", "sinc_f32_strided"} <= set(kernels(build, shader))
    (source,) = holding(out / "anymps", "pointwise_*.cpp", "structured_sinc_out::impl")
    (register,) = holding(out / "anymps" / "ops", "registration_*.cpp", '"sinc.out"')
    assert set(re.findall(r'm\.impl\("([\w.]+)"', register.read_text())) == {"sinc", "sinc_", "sinc.out"}
    check_cpp(build, out, [source, register])


def test_a_pointwise_row_compiled(tmp_path, mps, run_python):
    """torch.compile fuses an operator by its row: no second list names it."""
    row = """\
- {op: special_airy_ai.out, rule: unary_float, expr: "2 * x + 0.5f"}
- {op: special_zeta.out, rule: binary_float, expr: "self - other * other"}
- {op: softshrink_backward.grad_input, rule: binary, scalars: [lambd], expr: "grad_output + lambd * self"}
"""
    out = generate(tmp_path, "pointwise.yaml", row)
    source = f"""
import pathlib, torch
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch_anymps.inductor import rows
table = rows.package_file
rows.package_file = lambda name: pathlib.Path({str(out)!r}, name) if name == rows.TABLE else table(name)

def function(x, n):
    y = torch.special.zeta(torch.special.airy_ai(x), n)
    return torch.ops.aten.softshrink_backward(y, torch.special.zeta(2, n), 3.0)

x, n = torch.arange(6.0).reshape(2, 3), torch.arange(6).reshape(2, 3)
with fresh_cache():
    result, codes = run_and_get_code(torch.compile(function), x.to("mps"), n.to("mps"))
expected = 2 * x + 0.5 - n * n + 3 * (2 - n * n)
print(sum(code.count("= mps_kernel(") for code in codes), torch.equal(result.cpu(), expected), result.dtype)
"""
    done = run_python(source)
    assert done.stdout == "1 True torch.float32\n", done.stdout + done.stderr


def test_a_reduction_row(tmp_path, build):
    row = """\
sum_of_cubes:
  types: [f32]
  identity: T(0)
  map: v * v * v
  combine: a + b
  results: [a]
  aten:
    sum.IntList_out: [out]
"""
    out = generate(tmp_path, "reduction.yaml", row)
    (shader,) = holding(out / "shaders", "reduction_*.slang", "struct Op_sum_of_cubes_f32")
    assert any(name.startswith("sum_of_cubes_f32") for name in kernels(build, shader))
    (source,) = holding(out / "anymps" / "ops", "*.cpp", "TORCH_IMPL_FUNC(sum_IntList_out)")
    (register,) = holding(out / "anymps" / "ops", "registration_*.cpp", '"sum.IntList_out"')
    assert set(re.findall(r'm\.impl\("([\w.]+)"', register.read_text())) == {"sum.dim_IntList", "sum.IntList_out"}
    check_cpp(build, out, [source, register])


def test_a_gemm_tile(tmp_path, build):
    """docs/adding_a_tile.md: sizes of the tile follow from the kernel's row, which must be there."""
    shutil.copytree(ROOT / "shaders", tmp_path / "shaders")
    kernel = " 64x64x64=(64, 64, 64, 32, 32)"
    added = "," + kernel.replace(" 64x64x64=(64,", " 128x64x64=(128,")
    changed_copy("shaders/gemm/matmul.slang", tmp_path, kernel, added)
    generated = tmp_path / "generated"
    tool = [build / "bin" / "shader_headers", "--include", tmp_path / "shaders"]
    tiles = [tmp_path / "shaders" / f"{name}.slang" for name in SHADERS_OF_TILES]
    subprocess.run([*tool, "--output", generated / "anymps" / "shaders", *tiles], check=True)
    unit = tmp_path / "unit.cpp"
    unit.write_text(f"""\
#include "{ROOT}/csrc/gemm/tile_table.cpp"
using namespace anymps::gemm;
constexpr Tile kTile = *std::ranges::find(tile_rows::kMatrix16, std::string_view("matrix_128x64x64"), &Tile::kernel);
static_assert(kTile.m == 128 && kTile.n == 64 && kTile.workgroup == 256 && kTile.occupancy == 3);
""")
    flags = compiler_flags(build, "vulkan/device_profile.cpp")
    includes = [f"-I{tmp_path / 'csrc'}", f"-I{ROOT / 'csrc'}", f"-I{generated}"]
    row = '    matmul("f16", "matrix_64x64x64", {.cost_per_k = 1160, .occupancy = 3}),\n'
    for tile, message in (("128x64x64", ""), ("64x128x64", "no kernel has this name")):
        changed_copy("csrc/gemm/tile_rows.h", tmp_path, row, row.replace("64x64x64", tile))
        command = [*flags[:1], *includes, *flags[1:], "-O0", "-fsyntax-only", unit]
        result = subprocess.run(command, capture_output=True, text=True)
        assert (result.returncode == 0) == (message == ""), result.stderr[-3000:]
        assert message in result.stderr, result.stderr[:3000]


def test_a_gpu(tmp_path, build):
    """docs/adding_a_gpu.md: the first row that matches is a device's."""
    row = """
    {.name = "Imagination",
     .match = {.vendor_id = 0x1010, .discrete = true},
     .subgroup_size = 16,
     .registers = 64,
     .excluded = kOnIntel,
     .narrow = kNarrowOnIntel},"""
    source = changed_copy("csrc/vulkan/device_profile.cpp", tmp_path, "constexpr auto kProfiles = with_defaults({", row)
    unit = tmp_path / "unit.cpp"
    unit.write_text(f"""\
#include "{source}"
int main() {{
    anymps::vulkan::DeviceInfo info;
    info.vendor_id = 0x1010;
    for (const bool integrated : {{false, true}}) {{
        info.is_integrated = integrated;
        const auto& profile = anymps::vulkan::find_profile(info);
        std::printf("%s %u %d\\n", profile.name, profile.registers, profile.is_narrow("flash_simt_forward_64"));
    }}
}}
""")
    flags = compiler_flags(build, "vulkan/device_profile.cpp")
    # Sections: what else the file has needs a driver, and is left out.
    program = tmp_path / "program"
    command = [*flags, f"-I{ROOT / 'csrc'}", "-O0", "-ffunction-sections", "-Wl,--gc-sections", unit, "-o", program]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    found = subprocess.run([program], capture_output=True, text=True).stdout.splitlines()
    assert found[0] == "Imagination 64 1"
    assert found[1].startswith("other ")
