"""Wrong arguments raise on mps what they raise on the CPU: the same type and the same words.

The cases are PyTorch's own, the error_inputs of op_db. Names of devices may differ.
"""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from op_db_support import DEVICE, OPS, Call, map_tensors

AT_THE_KERNEL = "the device finds an index out of range: torch.AcceleratorError at the next synchronisation"
FAST_PATH = "the words of PyTorch's own faster path, which mps takes for every draw"
CPU_KERNEL = "the CPU's kernel has words of its own; these are those of the composite operator that other devices run"
# Cases of an operator that differ by design, and why; one that no longer differs fails.
DIFFERENT = {
    "gather": {4: AT_THE_KERNEL},
    "scatter": {3: AT_THE_KERNEL},
    "scatter_add": {3: AT_THE_KERNEL},
    "multinomial": dict.fromkeys((14, 15, 16, 17), FAST_PATH),
    "narrow_copy": dict.fromkeys((1, 6), CPU_KERNEL),
}
# These raise that they have no kernel before they look at their arguments; one that does not any more fails.
WITHOUT_KERNEL: set[str] = set()
OPS_WITH_ERRORS = [name for name, op in OPS.items() if op.error_inputs_func is not None]


def outcome(function) -> tuple[type | None, str]:
    """Type and words of what a call raises; (None, "") where it succeeds."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function()
        torch.mps.synchronize()
    except Exception as error:  # noqa: BLE001 - the type is compared
        return type(error), re.sub(r"\b(mps|cpu)(:0)?\b", "DEVICE", str(error), flags=re.IGNORECASE).strip()
    return None, ""


def single(value):
    """The same in single precision: the device has no double."""
    kinds = {torch.float64: torch.float32, torch.complex128: torch.complex64}
    if isinstance(value, torch.dtype):
        return kinds.get(value, value)
    if isinstance(value, dict):
        return {k: single(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(single(v) for v in value)
    return map_tensors(value, lambda t: t.to(kinds[t.dtype]) if t.dtype in kinds else t)


def error_cases(name: str):
    """The cases of an operator that the CPU refuses, by number, with what it says."""
    torch.manual_seed(0)
    op = OPS[name]
    for number, case in enumerate(op.error_inputs("cpu")):
        sample = case.sample_input
        sample.input, sample.args, sample.kwargs = single(sample.input), single(sample.args), single(sample.kwargs)
        expected = outcome(lambda sample=sample: op(sample.input, *sample.args, **sample.kwargs))
        if expected[0] is not None:
            yield number, sample, expected


def on_device(name: str, sample) -> tuple[type | None, str]:
    call = Call.of(OPS[name], sample, DEVICE)
    return outcome(lambda: OPS[name](call.input, *call.args, **call.kwargs))


@pytest.mark.parametrize("name", OPS_WITH_ERRORS)
def test_wrong_arguments(name, mps):
    accepted = DIFFERENT.get(name, {})
    found = {}
    missing = False
    for number, sample, expected in error_cases(name):
        actual = on_device(name, sample)
        if name in WITHOUT_KERNEL and actual[0] is NotImplementedError and "not currently implemented" in actual[1]:
            missing = True
        elif actual != expected:
            found[number] = f"{expected[0]}: {expected[1]}\n  became {actual[0]}: {actual[1]}"
    unexpected = [f"case {k}: {v}" for k, v in found.items() if k not in accepted]
    assert not unexpected, "\n".join(unexpected)
    assert missing == (name in WITHOUT_KERNEL), f"{name} has a kernel now: take it out of WITHOUT_KERNEL"
    assert set(accepted) <= set(found), f"cases {set(accepted) - set(found)} agree now: take them out of DIFFERENT"


def test_there_are_many_cases():
    """The comparison is no empty one."""
    assert sum(1 for name in OPS_WITH_ERRORS for _ in error_cases(name)) > 500


@pytest.mark.parametrize(
    "case",
    [
        lambda a, b: a + b,
        lambda a, b: torch.mm(a, b),
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.where(a > 0, a, b),
        lambda a, b: a.copy_(b[:1, :1].expand(2, 3)),
        lambda a, b: torch.nn.functional.linear(a, b),
        lambda a, b: a.index_select(0, b[0, :1].long()),
        lambda a, b: torch.add(a, a, out=b),
        lambda a, b: a[b > 0],
    ],
)
def test_tensors_of_two_devices(case, mps):
    """Two devices in one call raise, or do what PyTorch defines for them; they never read foreign memory."""
    a, b = torch.ones(2, 3, device=mps), torch.ones(2, 3)
    try:
        case(a, b)
    except RuntimeError as error:
        assert re.search("same device|mps|cpu", str(error))
    assert a.sum().item() == 6 and b.sum().item() == 6


@pytest.mark.parametrize("fallback", ["0", "1"])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: torch.nn.Conv1d(3, 4, 3), (1, 3, 5)),
        (lambda: torch.nn.Conv2d(3, 4, 3), (1, 3, 5, 5)),
        (lambda: torch.nn.Conv2d(3, 4, 3, dilation=2), (1, 3, 9, 9)),
        (lambda: torch.nn.Conv3d(3, 4, 3), (1, 3, 5, 5, 5)),
        (lambda: torch.nn.ConvTranspose2d(3, 4, 3), (1, 3, 5, 5)),
        (lambda: torch.nn.ConvTranspose3d(3, 4, 3), (1, 3, 5, 5, 5)),
    ],
)
def test_convolutions_of_an_input_that_stayed_on_the_cpu(layer, shape, fallback, mps, monkeypatch):
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", fallback)
    words = r"Input type \(torch.FloatTensor\) and weight type \(.*MPS.*\) should be the same"
    with pytest.raises(RuntimeError, match=words):
        layer().to(mps)(torch.ones(shape))


@pytest.mark.parametrize("value", [0, 0.0, False, 0j])
def test_assertions_on_the_device_raise_later(value, mps):
    """The call returns at once; the next synchronization raises with the message, and then the device is as before."""
    held = torch.tensor([value], device=mps)
    with pytest.raises(torch.AcceleratorError, match="the loss is finite"):
        torch._assert_async(held, "the loss is finite")
        torch.mps.synchronize()
    with pytest.raises(torch.AcceleratorError, match="Expected Tensor with single nonzero value, but got zero"):
        torch._assert_async(held)
        held.item()
    torch._assert_async(held == 0, "no error")
    torch._assert_async(torch.full((), float("nan"), device=mps), "NaN is not zero")
    torch.mps.synchronize()


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), float("inf")])
def test_probabilities_that_are_none_raise_later(p, mps):
    probabilities = torch.tensor([0.0, 0.5, 1.0, 0.25, p], device=mps)
    for draw in (torch.bernoulli, lambda t: torch.zeros(5, 5, dtype=torch.half, device=mps).bernoulli_(t)):
        with pytest.raises(torch.AcceleratorError, match="p_in >= 0 && p_in <= 1"):
            draw(probabilities)
            torch.mps.synchronize()
    torch.bernoulli(probabilities[:4]).cpu()


def test_assertions_of_graphs(mps):
    token = torch._make_dep_token(device=mps)
    assert (token.shape, token.dtype, token.device.type) == ((), torch.float32, "mps")
    assert torch._functional_assert_async(torch.ones(1, device=mps), "no error", token) is token
    torch.mps.synchronize()
    with pytest.raises(torch.AcceleratorError, match="the loss is finite"):
        torch._functional_assert_async(torch.zeros(1, device=mps), "the loss is finite", token)
        torch.mps.synchronize()


def test_assertions_want_one_value(raises_as_on_the_cpu):
    raises_as_on_the_cpu(lambda ones: torch._assert_async(ones(0)))
    raises_as_on_the_cpu(lambda ones: torch._assert_async(ones(2), "message"))


def test_no_element_is_no_scalar(raises_as_on_the_cpu):
    raises_as_on_the_cpu(lambda ones: torch.ops.aten._local_scalar_dense(ones(0)))


def test_masks_without_dimensions_index_nothing(mps):
    """Python gives them a dimension; as operands they leave no index, which ended the process."""
    x, mask, value = torch.ones(2, 3, device=mps), torch.tensor(True, device=mps), torch.ones((), device=mps)
    for call in (
        lambda: torch.ops.aten.index(x, [mask]),
        lambda: x.index_put((mask,), value),
        lambda: x.index_put((mask,), value, accumulate=True),
    ):
        with pytest.raises(IndexError, match="an index of at least one dimension"):
            call()
    assert torch.equal(x[mask], x[None])


@pytest.mark.parametrize("count", [0, 2, 8])
@pytest.mark.parametrize("name", ["weight", "bias", "running_mean", "running_var"])
@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_of_another_number_of_channels(name, count, training, mps):
    """Of the operator itself, where the CPU reads and writes what lies behind."""
    given = {key: torch.ones(4, device=mps) for key in ("weight", "bias", "running_mean", "running_var")}
    given[name] = torch.ones(count, device=mps)
    with pytest.raises(RuntimeError, match=f"{name} should contain 4 elements not {count}"):
        torch.native_batch_norm(torch.ones(2, 4, 3, device=mps), *given.values(), training, 0.1, 1e-5)
