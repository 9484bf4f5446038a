"""docs/supported_ops.md and README say what the dispatcher says; which operators have a kernel on the GPU, and which
read anything on the host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchgen
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from op_db_lists import comparison  # noqa: E402
from supported_ops import (  # noqa: E402
    OF_METAL_ONLY,
    PAGE,
    WRITTEN,
    cpu_only,
    entries_of_pytorch,
    host_overloads,
    kind_of,
    registered,
    use_of,
)

# Operators whose core is LAPACK, by their names without the overload.
LAPACK = {
    "_linalg_eigh", "_linalg_eigvals", "_linalg_svd", "geqrf", "linalg_eig", "linalg_eigvals",
    "linalg_householder_product", "linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_lstsq", "linalg_matrix_sqrth",
    "linalg_polar", "linalg_qr", "ormqr",
}  # fmt: skip
# Entries with a kernel on Apple's device, overloads of them and operators, by the version of PyTorch.
COUNTS = {"2.13": (533, 890, 418), "2.14": (549, 912, 431), "2.15": (561, 928, 441)}
# What Apple's device does not have.
BEYOND = """
mode heaviside.out channel_shuffle embedding_renorm_ rrelu_with_noise multi_margin_loss multi_margin_loss_backward
multilabel_margin_loss_forward multilabel_margin_loss_backward adaptive_avg_pool3d.out _adaptive_avg_pool3d
_adaptive_avg_pool3d_backward adaptive_max_pool3d.out adaptive_max_pool3d_backward.grad_input
fractional_max_pool2d.output fractional_max_pool2d_backward.grad_input fractional_max_pool3d.output
fractional_max_pool3d_backward _pdist_forward _pdist_backward segment_reduce _segment_reduce_backward _fused_adagrad_
_fused_rms_norm_backward take put_ lcm.out frexp.Tensor_out index_reduce.out nonzero_static logspace.out _ctc_loss
_ctc_loss.Tensor _ctc_loss_backward _ctc_loss_backward.Tensor grid_sampler_3d grid_sampler_3d_backward
grid_sampler_2d_backward _upsample_bilinear2d_aa_backward.grad_input _upsample_bicubic2d_aa_backward.grad_input
_int_mm _int_mm.out _foreach_add.List _foreach_sub.List _foreach_mul.List _foreach_div.List _foreach_addcmul.Scalar
_foreach_addcdiv.Scalar _foreach_lerp.List _foreach_sqrt _foreach_norm.Scalar _foreach_zero_ _foreach_copy_ mm.dtype
bmm.dtype addmm.dtype baddbmm.dtype _grouped_mm histc histogram.bin_ct histogram.bins_tensor poisson binomial
_native_multi_head_attention _transform_bias_rescale_qkv _transformer_encoder_layer_fwd _masked_softmax
_masked_softmax_backward _addmm_activation.out _add_relu.Tensor _aminmax _functional_assert_async.msg dequantize.self
"""
# Files of csrc/ops and csrc/gemm that read on the host, and what: sizes of results, checks of values, and numbers. No
# operator is computed there.
ON_THE_HOST = {
    "attention/attention.cpp": "the seed of dropout",
    "copy.cpp": "copies between host and device",
    "equal.cpp": "the answer",
    "fake_quantize.cpp": "the range of zero points, of which there is a check",
    "fill.cpp": "a 0-d tensor of the host's",
    "gemm/fragment_layout.cpp": "once a process, in which order the device keeps the elements of a fragment",
    "indexing/index.cpp": "a 0-d tensor of the host's",
    "indexing/index_dim.cpp": "a 0-d tensor of the host's",
    "indexing/indexed_copy.cpp": "an index into an empty dimension, for its message",
    "indexing/nonzero.cpp": "the size of the result",
    "linalg/matrix_exp.cpp": "norms, which say how often a matrix is squared",
    "loss/ctc_loss.cpp": "lengths, which PyTorch hands over as lists",
    "loss/margin_loss.cpp": "the range of targets, of which there is a check",
    "nested.cpp": "whether a mask is left-aligned, and the size of the result",
    "optimizer.cpp": "a learning rate of the host's",
    "random/distributions.cpp": "whether probabilities are negative",
    "random/random.cpp": "a bound rounded to the type",
    "random/sampling.cpp": "whether probabilities are negative",
    "reduction/segment_reduce.cpp": "whether lengths add up",
    "scalar.cpp": "item()",
    "sort/histogram.cpp": "the range of the data, of which there is a check",
    "sort/histogramdd.cpp": "the range of the data, of which there is a check",
    "sort/search.cpp": "the size of the result",
    "sort/unique.cpp": "the size of the result, and rows with NaN, which the CPU's sort orders",
    "sparse/compressed.cpp": "indices, of which there is PyTorch's own check",
    "sparse/construct.cpp": "whether places repeat, of which there is a check",
    "tensor_compare.cpp": "a 0-d tensor of the host's",
    "torchaudio/forced_align.cpp": "lengths, of which there are checks",
    "torchaudio/rnnt_loss.cpp": "lengths, of which there are checks",
    "window.cpp": "a window, which the CPU makes",
}
READS = re.compile(r"\.cpu\(\)|kCPU|DeviceType::CPU|\.item(<|\()|host_pointer|\b(up|down)load[<(]")


of_the_page = pytest.mark.skipif(
    WRITTEN not in PAGE.read_text(), reason="docs/supported_ops.md was written with another version of PyTorch"
)


@of_the_page
def test_the_page_is_current(mps):
    tool = [sys.executable, "-P", ROOT / "tools" / "supported_ops.py", "--check"]
    result = subprocess.run(tool, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def overloads_of_pytorch() -> list[str]:
    """The entries with a kernel on Apple's device, and the functional and in-place forms that are made of them."""
    path = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
    entries = set(entries_of_pytorch())
    functions = yaml.safe_load(path.read_text())
    return sorted(
        entries | {f["func"].split("(")[0] for f in functions if f.get("structured_delegate") in entries},
    )


def test_every_kernel_of_apples_device_has_one_here(mps):
    overloads = overloads_of_pytorch()
    names = {n.split(".")[0] for n in overloads}
    names = {n if n.startswith("__") else n.rstrip("_") for n in names}
    assert (len(entries_of_pytorch()), len(overloads), len(names)) == COUNTS[str(torch.__version__)[:4]]
    ours, host = registered(), host_overloads()
    kinds = {name: kind_of(name, ours, host) for name in overloads}
    absent = {name for name, kind in kinds.items() if kind == "fallback" and not OF_METAL_ONLY.match(name)}
    assert not absent
    assert {name.split(".")[0] for name in host} == {name for name in LAPACK if hasattr(torch.ops.aten, name)}
    assert {name.split(".")[0] for name, kind in kinds.items() if kind == "host"} <= LAPACK
    # Made of other operators: nothing of theirs is missing, as test_op_db.py calls them without the fallback.
    composite = {name for name, kind in kinds.items() if kind == "composite"}
    assert {name.split(".")[0].rstrip("_") for name in composite} == {"constant_pad_nd", "permute", "repeat"}


@pytest.mark.parametrize("name", BEYOND.split())
def test_kernels_beyond_apples_device(name, mps):
    assert kind_of(name, registered(), host_overloads()) == "native"


def test_what_only_the_cpu_has_is_of_a_known_use(mps):
    """An operator of a new PyTorch that a program may call shows up here."""
    names = cpu_only()
    assert "quantize_per_tensor" in names and not set(names) & registered()
    assert not [name for name in names if use_of(name) == "other"]


def test_special_functions_are_whole(mps):
    """Each has a kernel, or is another name of an operator that has one."""
    every = {n.removeprefix("aten::") for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::special_")}
    ours, host = registered(), host_overloads()
    assert len(every) > 100
    assert not [name for name in every if kind_of(name, ours, host) not in ("native", "composite")]


@of_the_page
def test_fewer_samples_are_excepted_than_for_apples_device():
    """In every category, by operators and by operators with dtypes."""
    rows = comparison()
    assert len(rows) == 4
    for category, theirs, ours in rows:
        assert len(ours) < len(theirs), category
        assert len({op for op, _ in ours}) < len({op for op, _ in theirs}), category


def test_no_operator_is_computed_on_the_host():
    csrc = ROOT / "csrc"
    files = [*(csrc / "ops").rglob("*.cpp"), *(csrc / "gemm").rglob("*.cpp")]
    sources = {str(path.relative_to(csrc)).removeprefix("ops/"): path.read_text() for path in files}
    reading = {
        name
        for name, text in sources.items()
        if any(READS.search(line) for line in text.splitlines() if not line.lstrip().startswith("//"))
    }
    assert reading == set(ON_THE_HOST)


def test_outcomes_of_pytorchs_own_tests_are_sorted():
    sys.path.insert(0, str(ROOT / "tools" / "pytorch_tests"))
    from run import compare, exceptions, reason_of

    def outcomes(**found):
        return {"outcomes": {f"test_a.py::TestA::{name}": entry for name, entry in found.items()}}

    excepted = exceptions()[0]
    assert all({"test", "reason"} <= set(row) <= {"test", "error", "reason"} and row["reason"] for row in exceptions())
    rows = [{"test": "a::*", "error": "refused", "reason": "one"}, {"test": "a::b", "reason": "two"}]
    found = [reason_of(rows, "a::b", "is refused"), reason_of(rows, "a::b", "dies"), reason_of(rows, "a::c", "dies")]
    assert found == ["one", "two", None]
    passed, failed = {"outcome": "passed"}, {"outcome": "failed", "message": "words"}
    cpu = outcomes(a=passed, b=passed, c_DEVICE_float64=passed, d=passed, e=passed, f=failed, g=passed, h=passed)
    mps = outcomes(
        a=passed, b=failed, c_DEVICE_float64=failed, d={"outcome": "skipped"}, f=failed,
        g=failed | {"needs": "float64"}, h={"outcome": "not run"},
    )  # fmt: skip
    cpu["outcomes"][excepted["test"]], mps["outcomes"][excepted["test"]] = passed, failed
    counts, reasons, failures = compare(cpu, mps)
    assert counts["test_a.py"] == {
        "passed": 1, "failed": 1, "need float64": 2, "skipped by PyTorch": 1, "of other devices": 1, "not run": 1,
    }  # fmt: skip
    assert counts[excepted["test"].split("::")[0]] == {"listed": 1} and reasons == {excepted["reason"]: 1}
    assert failures == ["test_a.py::TestA::b: words"]
