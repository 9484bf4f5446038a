"""When two results of an operator agree.

The tolerances are those of PyTorch's own test for Apple's device, TestConsistency of its test_mps.py.
"""

from __future__ import annotations

import math

import torch
from torch.testing._internal.common_device_type import toleranceOverride

DEFAULT = {  # relative and absolute; integers are compared exactly
    torch.float32: (1.3e-6, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
}
# Where the CPU answers in double precision without being asked, the device, which has none, answers in single.
SINGLE_OF = {torch.float64: torch.float32, torch.complex128: torch.complex64}
SINGLE = dict.fromkeys((torch.float32, torch.complex64), (3e-5, 1e-4))
HALF = {torch.float16: (1e-2, 2e-2), torch.bfloat16: (5e-2, 5e-2)}
PRODUCT = {torch.float16: (5e-2, 5e-2), torch.bfloat16: (1e-1, 5e-2)}
FOURIER = dict.fromkeys((torch.float32, torch.complex64), (3e-5, 3e-5))


def _named(names: str, tolerances: dict) -> dict[str, dict]:
    return dict.fromkeys(names.split(), tolerances)


# Operators whose results are compared less strictly; the first table that has the operator and the type counts.
LOOSER = (
    _named(
        "nn.functional.conv2d nn.functional.conv_transpose2d matmul __rmatmul__ linalg.multi_dot addbmm addmm bmm mm",
        SINGLE,
    ),
    _named(
        "nn.functional.conv_transpose1d nn.functional.conv_transpose2d nn.functional.conv_transpose3d __rmatmul__ "
        "addbmm addmm addmv baddbmm corrcoef cov linalg.multi_dot matmul mv nn.functional.linear",
        PRODUCT,
    ),
    _named(
        "add sub div addcdiv __rdiv__ __rmul__ nn.functional.huber_loss true_divide kron gradient var std ldexp "
        "linalg.vector_norm lerp addr var_mean var_mean_unbiased acosh asinh asin masked.std nn.functional.normalize "
        "nn.functional.triplet_margin_loss nn.functional.triplet_margin_with_distance_loss nn.functional.batch_norm "
        "nn.functional.instance_norm round xlogy addcmul nn.functional.max_pool2d nn.functional.gelu nn.functional.glu "
        "_native_batch_norm_legit native_batch_norm _batch_norm_with_update softmax _softmax_backward_data "
        "log_softmax masked.softmax masked.log_softmax masked.softmin nn.functional.kl_div "
        "nn.functional.softmin cross linalg.cross prod masked.prod nextafter native_layer_norm "
        "nn.functional.layer_norm nn.functional.interpolate "
        "nn.functional.upsample_bilinear nn.functional.upsample_nearest masked.normalize masked.sum masked.var outer "
        "sum_to_size sum mul nansum nanmean norm",
        HALF,
    ),
    _named("fft.rfftn fft.hfftn fft.hfft2 fft.fft fft.fftn fft.rfft", FOURIER),
    # The CPU interpolates bytes with short integer weights: one unit off the rounded exact result.
    _named(
        "_upsample_bilinear2d_aa nn.functional.interpolate nn.functional.upsample_bilinear", {torch.uint8: (0.0, 1.0)}
    ),
    # Gradients whose terms of tens cancel, to 0 for the weights of two observations: the CPU's own are off by 1.5e-5.
    _named("linalg.householder_product linalg.lstsq cov", {torch.float32: (1.3e-6, 5e-5)}),
    # Gradients that are a difference of halves near 0.14, whose last bit is 1.2e-4: the CPU's are off by as much.
    _named("special.i1e", {torch.float16: (1e-3, 2e-4)}),
    # Matrices of norms of 10: an error is as large in small elements as in the largest, of 9e4 (8e3 in gradients). From
    # float64 the gradients of one CPU were 9e-3 off, ours 6e-3; another kind of CPU agrees with ours.
    _named("matrix_exp", {torch.float32: (1.3e-6, 2e-2)}),
    # Logits of hundreds, whose last bit is 1.5e-5 of a weight: as op_db itself has it for other tests.
    _named("nn.functional.scaled_dot_product_attention", {torch.float32: (5e-6, 5e-5)}),
    _named("masked.mean", dict.fromkeys(DEFAULT, (2e-3, 7e-4))),
    _named("native_layer_norm", {torch.float32: (1.3e-5, 1e-4)}),
    _named("index_reduce", dict.fromkeys((torch.float16, torch.bfloat16), (1e-2, 1e-2))),
)

# Their mean and deviation are float32 whatever the input, as on CUDA.
STATISTICS_IN_SINGLE = {
    "_batch_norm_with_update", "_native_batch_norm_legit", "native_batch_norm", "native_group_norm",
    "native_layer_norm",
}  # fmt: skip
# Which of several equal elements these name is not promised. The position of `dim` among their arguments.
NAMING_ELEMENTS = {"sort": 0, "argsort": 0, "mode": 0, "topk": 1, "kthvalue": 1}


def _looser(name: str, dtype: torch.dtype) -> tuple[float, float] | None:
    return next((table[name][dtype] for table in LOOSER if dtype in table.get(name, ())), None)


def tolerances(op, dtype: torch.dtype) -> dict[torch.dtype, tuple[float, float]]:
    """Relative and absolute tolerance of each type that a result may have, for an operator called with a dtype."""
    found = _looser(op.name, dtype)
    if found is None:
        decorators = op.get_decorators("TestConsistency", "test_output_match", "cpu", dtype, {})
        overrides = [d.d[dtype] for d in decorators if isinstance(d, toleranceOverride) and dtype in d.d]
        found = (overrides[0].rtol, overrides[0].atol) if overrides else DEFAULT.get(dtype, (0.0, 0.0))
    # A half operator may answer in single precision: what it computed from is no more exact for that.
    allowed = {kind: max(found, default) for kind, default in DEFAULT.items()}
    if dtype not in DEFAULT:  # integers are computed in single precision
        for kind in (torch.float32, torch.complex64):
            allowed[kind] = max(allowed[kind], _looser(op.name, kind) or allowed[kind])
    return allowed if dtype in DEFAULT else {**allowed, dtype: found}


def elements_named(name: str, result, x: torch.Tensor, args: tuple, kwargs: dict):
    """The result of one of NAMING_ELEMENTS with its indices replaced by the elements that they name, and by whether
    they are distinct. Others' results as they are."""
    if name not in NAMING_ELEMENTS or kwargs.get("stable"):
        return result
    at = NAMING_ELEMENTS[name]
    dim = kwargs.get("dim", args[at] if len(args) > at else -1)
    values = () if isinstance(result, torch.Tensor) else (result[0],)
    indices = (result if isinstance(result, torch.Tensor) else result[1]).cpu()
    if indices.dim() < x.dim():
        indices = indices.unsqueeze(dim)
    ordered = indices.sort(dim).values
    return (*values, x.detach().cpu().gather(dim, indices), ordered.diff(dim=dim) != 0 if x.dim() else ordered)


def map_tensors(value, function):
    """The same structure with every tensor replaced; tuples keep their type."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple):
        items = [map_tensors(v, function) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [map_tensors(v, function) for v in value]
    if isinstance(value, dict):
        return {k: map_tensors(v, function) for k, v in value.items()}
    return value


def tensors_in(value) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_tensors(value, lambda t: found.append(t) or t)
    return found


def _number(actual, expected, allowed) -> bool:
    relative, absolute = allowed[torch.float32]
    if isinstance(expected, (float, complex)) and isinstance(actual, (float, complex)):
        same = expected != expected and actual != actual
        return same or actual == expected or abs(actual - expected) <= absolute + relative * abs(expected)
    return actual == expected or (isinstance(expected, float) and math.isnan(expected) and math.isnan(actual))


def difference(
    actual, expected, allowed: dict, values: bool = True, types: bool = True, single_statistics: bool = False
) -> str | None:
    """A sentence where two results differ, else None.

    allowed: what `tolerances` gives. `values` False compares types and shapes only; `types` False compares values only,
    in the types of `actual`; `single_statistics` lets the second and later tensors be float32 for half.
    """
    got, want = tensors_in(actual), tensors_in(expected)
    if len(got) != len(want):
        return f"{len(got)} tensors where the CPU gives {len(want)}"
    plain = not want and not isinstance(expected, (tuple, list))
    if plain and values and not _number(actual, expected, allowed):
        return f"{actual} where the CPU gives {expected}"
    for number, (a, e) in enumerate(zip(got, want)):
        same_type = a.dtype in (e.dtype, SINGLE_OF.get(e.dtype))
        if single_statistics and number > 0 and e.dtype in (torch.float16, torch.bfloat16):
            same_type |= a.dtype == torch.float32
        if a.shape != e.shape or a.layout != e.layout or (types and not same_type):
            return f"{a.dtype} {tuple(a.shape)} where the CPU gives {e.dtype} {tuple(e.shape)}"
        if values:
            kind = torch.complex64 if a.dtype == torch.complex32 else a.dtype  # which the CPU cannot compare
            relative, absolute = allowed.get(torch.float16 if kind != a.dtype else kind, (0.0, 0.0))
            try:
                torch.testing.assert_close(
                    a.detach().cpu().to(kind),
                    e.detach().to(a.dtype).to(kind),
                    rtol=relative,
                    atol=absolute,
                    equal_nan=True,
                    check_stride=False,
                )
            except AssertionError as error:
                return " ".join(str(error).split())[:300]
    return None


def errors_are_alike(actual: list[torch.Tensor], expected: list[torch.Tensor], wider: list[torch.Tensor]) -> bool:
    """Whether a result is at most twice as far from the exact one as the CPU's is, in the largest error of a tensor.

    For ill-conditioned samples, which no order of rounding gets right. Errors beyond 1 % of the largest value are not
    excused by the CPU's.
    """
    if len(actual) != len(expected) or len(actual) != len(wider):
        return False
    for a, e, w in zip(actual, expected, wider):
        if a.numel() == 0:
            continue
        a, e, w = (t.detach().cpu().to(torch.complex128 if t.is_complex() else torch.float64) for t in (a, e, w))
        if not torch.equal(a.isfinite(), w.isfinite()) or not a.isfinite().all() or not e.isfinite().all():
            return False
        error, cpu_error = (a - w).abs().max(), (e - w).abs().max()
        if error > 2 * cpu_error or error > 1e-2 * w.abs().max():
            return False
    return True
