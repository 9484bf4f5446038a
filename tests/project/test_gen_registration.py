"""tools/gen_registration.py: what a source's markers make, and what it says about mistakes."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import gen_registration  # noqa: E402
from anymps_codegen import c_shims, registration  # noqa: E402
from anymps_codegen.markers import scan_text  # noqa: E402
from anymps_codegen.schema import CodegenError, torch_version  # noqa: E402


def registration_of(stem: str) -> str:
    return registration.registration_outputs()[registration.shard_of(stem, registration.REGISTRATIONS)]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the tool over sources in this process (PyTorch's list of operators is read once); out is its folder."""

    def run(sources):
        ops, out = tmp_path / "ops", tmp_path / "out"
        for name, text in sources.items():
            (ops / name).parent.mkdir(parents=True, exist_ok=True)
            (ops / name).write_text(text)
        monkeypatch.setattr(sys, "argv", ["gen_registration.py", "--ops", str(ops), "--out", str(out)])
        status = gen_registration.main()
        return SimpleNamespace(status=status, stderr=capsys.readouterr().err), out

    return run


def test_structured_group_and_plain_function(run):
    result, out = run(
        {
            "softmax.cpp": "TORCH_IMPL_FUNC(_softmax_out)(...) {}\nTORCH_IMPL_FUNC(add_out)(...) {}",
            "matmul/gemm.cpp": "// ANYMPS_FUNC(not_this)\nTensor ANYMPS_FUNC(linear)(...) {}",
        },
    )
    assert result.status == 0, result.stderr
    header = (out / "anymps/ops/softmax_ops.h").read_text()
    assert "struct structured__softmax_out : public at::meta::structured__softmax {" in header
    assert "TORCH_API" not in header
    source = (out / registration_of("softmax")).read_text()
    for op in ("_softmax", "_softmax.out", "add.Tensor", "add_.Tensor", "add.out"):
        assert f'm.impl("{op}",' in source
    header = (out / "anymps/ops/matmul/gemm_ops.h").read_text()
    assert "linear(const at::Tensor & input, const at::Tensor & weight" in header
    assert 'm.impl("linear",' in (out / registration_of("matmul/gemm")).read_text()
    assert sum(path.read_text().count("m.impl(") for path in out.rglob("registration_*.cpp")) == 6


def test_rows_get_their_signatures(run):
    result, out = run(
        {
            "a.cpp": 'ANYMPS_ROW(_softmax_out, f(self, dim))\nANYMPS_ROW(normal_, f(", ", self))\n'
            "Tensor ANYMPS_FUNC(linear)()",
            "sparse/b.cpp": "ANYMPS_SPARSE_ROW(mm_out, f(self, mat2, out))\nANYMPS_SPARSE_CSR_ROW(mm_out, f(self))",
        },
    )
    assert result.status == 0, result.stderr
    header = (out / "anymps/ops/a_ops.h").read_text()
    signatures = [line for line in header.splitlines() if "ANYMPS_SIGNATURE_" in line]
    assert signatures == [
        "#define ANYMPS_SIGNATURE__softmax_out void structured__softmax_out::impl("
        "const at::Tensor & self, int64_t dim, bool half_to_float, const at::Tensor & out)",
        "#define ANYMPS_SIGNATURE_normal_ at::Tensor & normal_("
        "at::Tensor & self, double mean, double std, ::std::optional<at::Generator> generator)",
    ]
    assert "struct structured__softmax_out : public at::meta::structured__softmax {" in header
    header = (out / "anymps/ops/sparse/b_ops.h").read_text()
    for kernel in ("mm_out_sparse", "mm_out_sparse_csr"):
        assert f"#define ANYMPS_SIGNATURE_{kernel} at::Tensor & {kernel}(const at::Tensor & self" in header
    source = (out / registration_of("sparse/b")).read_text()
    assert "TORCH_LIBRARY_IMPL(aten, SparseMPS" in source and "TORCH_LIBRARY_IMPL(aten, SparseCsrMPS" in source


def test_unchanged_files_keep_their_time(run):
    _, out = run({"a.cpp": "Tensor ANYMPS_FUNC(view)()", "b.cpp": "Tensor ANYMPS_FUNC(linear)()"})
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*.*")}
    assert len(before) == 2 + registration.REGISTRATIONS + len(c_shims.outputs())
    run({"b.cpp": "Tensor ANYMPS_FUNC(linear)() ANYMPS_FUNC(alias)"})
    changed = {p.name for p in out.rglob("*.*") if p.stat().st_mtime_ns != before[p]}
    assert changed == {"b_ops.h", Path(registration_of("b")).name}


def test_c_shims_of_what_inductor_calls(run):
    _, out = run({"a.cpp": "Tensor ANYMPS_FUNC(view)()"})
    header, *sources = [(out / name).read_text() for name in c_shims.outputs()]
    definitions = "".join(sources)
    names = set(re.findall(r"AOTI_TORCH_EXPORT AOTITorchError (aoti_torch_mps_\w+)\(", header))
    assert {"aoti_torch_mps_mm_out", "aoti_torch_mps_convolution", "aoti_torch_mps_sort_stable"} <= names
    assert len(names) >= 150 and all(f"AOTITorchError {name}(" in definitions for name in names)
    assert definitions.count("below_autograd;") == len(names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ANYMPS_FUNC(embeding)", "a.cpp:2: PyTorch has no operator 'embeding'; near matches are 'embedding'"),
        ("ANYMPS_FUNC(fill_)", "near matches are 'fill__Scalar', 'fill__Tensor'"),
        ("TORCH_IMPL_FUNC(add_Tensor)", "takes the out overload of a structured operator: 'add.out', not 'add.Tensor'"),
        ("TORCH_IMPL_FUNC(linear)", "'linear' is not structured in PyTorch: write ANYMPS_FUNC(linear)"),
        ("ANYMPS_FUNC(op##_out)", "a.cpp:2: ANYMPS_FUNC(op##_out) does not name one operator"),
        ("ANYMPS_ROW(op##_out, f(self))", "a.cpp:2: ANYMPS_ROW(op##_out) does not name one operator"),
        ("ANYMPS_ROW(view, 1) ANYMPS_FUNC(view)", "'view' is registered twice: by"),
        ("ANYMPS_FUNC(reshape)", "with a kernel on MPS it would have no gradient"),
        ("ANYMPS_FUNC(view)\nANYMPS_FUNC(view)", "'view' is registered twice: by"),
        ("TORCH_IMPL_FUNC(add_out) ANYMPS_FUNC(add__Tensor)", "'add_.Tensor' is registered twice: by"),
    ],
)
def test_mistakes_are_whole_sentences(run, text, message):
    result, out = run({"a.cpp": "/* first line */\n" + text})
    assert result.status == 1
    assert message in result.stderr
    assert not out.exists()


def test_the_command_ends_without_a_traceback(tmp_path):
    (tmp_path / "a.cpp").write_text("ANYMPS_FUNC(vie)")
    tool = [sys.executable, ROOT / "tools" / "gen_registration.py", "--ops", tmp_path, "--out", tmp_path / "out"]
    result = subprocess.run(tool, capture_output=True, text=True)
    assert result.returncode == 1
    assert (
        result.stderr
        == f"gen_registration: {tmp_path}/a.cpp:1: PyTorch has no operator 'vie'; near matches are 'view'.\n"
    )


def test_one_overload_in_two_files_is_refused(run):
    result, _ = run({"a.cpp": "ANYMPS_FUNC(view)", "b/b.cpp": "ANYMPS_FUNC(view)"})
    assert "a.cpp:1 and by" in result.stderr and "b/b.cpp:1" in result.stderr


def test_table_entries(tmp_path):
    entries = [registration.Entry("mul.out", "mul_out", structured=True), registration.Entry("relu", "relu", False)]
    paths = registration.write_families([registration.Family("table_0", entries, {"table_0.txt": "rows"})], tmp_path)
    names = {str(path.relative_to(tmp_path)) for path in paths}
    assert names == {"table_0.txt", "anymps/ops/table_0_ops.h", *registration.registration_outputs()}
    assert (tmp_path / registration_of("table_0")).read_text().count("m.impl(") == 4


def test_two_families_share_a_registration(run):
    stems = [s for s in "abcdefghijklmnop" if registration_of(s) == registration_of("a")][:2]
    result, out = run({f"{s}.cpp": f"Tensor ANYMPS_FUNC({op})()" for s, op in zip(stems, ("view", "linear"))})
    assert result.status == 0, result.stderr
    source = (out / registration_of("a")).read_text()
    assert all(f"#include <anymps/ops/{stem}_ops.h>" in source for stem in stems)
    assert source.count("m.impl(") == 2 and source.count("TORCH_LIBRARY_IMPL(") == 1


def test_a_shard_does_not_move():
    assert [registration.shard_of(op, 8) for op in ("add.out", "mul.out", "exp.out")] == [0, 3, 1]


VERSIONS = """
#if ANYMPS_TORCH_UNTIL(2, 13)
Tensor ANYMPS_FUNC(cholesky)() {}
#ifdef SOMETHING
Tensor ANYMPS_FUNC(qr)() {}
#else
Tensor ANYMPS_FUNC(gone)() {}
#endif
#else
Tensor ANYMPS_FUNC(newer)() {}
#endif
#if !ANYMPS_TORCH_UNTIL(2, 14)
Tensor ANYMPS_FUNC(newest)() {}
#endif
#if 0
Tensor ANYMPS_FUNC(view)() {}
#endif
"""


@pytest.mark.parametrize(
    ("version", "names"),
    [((2, 13), "cholesky qr gone view"), ((2, 14), "newer view"), ((2, 15), "newer newest view")],
)
def test_blocks_of_one_version(version, names):
    assert [marker.name for marker in scan_text(VERSIONS, "x.cpp", version)] == names.split()
    assert {marker.where for marker in scan_text(VERSIONS, "x.cpp", version) if marker.name == "view"} == {"x.cpp:16"}


@pytest.mark.parametrize("line", ["#if ANYMPS_TORCH_UNTIL(2, 13) && X", "#if X\n#elif ANYMPS_TORCH_UNTIL(2, 13)"])
def test_other_conditions_on_the_version_are_refused(line):
    with pytest.raises(CodegenError, match="stands alone behind #if"):
        scan_text(line + "\n#endif", "x.cpp", (2, 13))


def test_the_version_is_that_of_the_installed_torch():
    import torch

    assert torch_version() == tuple(int(part) for part in torch.__version__.split(".")[:2])
