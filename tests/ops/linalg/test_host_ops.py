"""Operators whose core is a call of LAPACK on the host, against the CPU."""

import json
import warnings

import pytest
import torch
from linalg_compare import assert_like_cpu, assert_same_error, well_conditioned

import torch_anymps

pytestmark = pytest.mark.usefixtures("no_fallback")

HOST = {
    "eigh": lambda t: torch.linalg.eigh(t @ t.mT)[0],
    "eigvalsh": lambda t: torch.linalg.eigvalsh(t @ t.mT),
    "svdvals": torch.linalg.svdvals,
    "eigvals": lambda t: torch.linalg.eigvals(t @ t.mT).abs().sort(-1)[0],
    "eig": lambda t: torch.linalg.eig(t @ t.mT)[0].abs().sort(-1)[0],
    "qr": lambda t: torch.linalg.qr(t)[1].abs(),
    "pinv": torch.linalg.pinv,
    "lstsq": lambda t: torch.linalg.lstsq(t, torch.ones_like(t)[..., :2]).solution,
    "householder_product": lambda t: torch.linalg.householder_product(*torch.geqrf(t)),
}

if hasattr(torch.linalg, "polar"):  # from PyTorch 2.14 on
    HOST["polar"] = lambda t: torch.cat(torch.linalg.polar(t))


@pytest.mark.parametrize("name", HOST)
def test_host_ops(mps, name):
    """Without a warning, without the variable, through autograd, counted as host ops and not as fallbacks."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for shape in [(4, 4), (2, 3, 5, 5)]:
            x = well_conditioned(*shape)
            gradients = name != "householder_product"
            assert_like_cpu(HOST[name], x, gradients=gradients, tolerance=1e-3)


def test_host_ops_out_and_list(mps):
    x = torch.randn(3, 4, 4)
    values, vectors = torch.empty(0, device=mps), torch.empty(3, 4, 4, device=mps).mT
    torch.linalg.eigh((x @ x.mT).to(mps), out=(values, vectors))
    torch.testing.assert_close((vectors * values[..., None, :] @ vectors.mT).cpu(), x @ x.mT, rtol=1e-4, atol=1e-4)
    q, r = torch.linalg.qr(x.to(mps), mode="complete")
    torch.testing.assert_close((q @ r).cpu(), x, rtol=1e-4, atol=1e-4)
    reflectors, tau = torch.geqrf(x.to(mps))
    torch.testing.assert_close(torch.ormqr(reflectors, tau, r), q @ r, rtol=1e-4, atol=1e-4)
    factors, pivots = torch.linalg.ldl_factor((x + x.mT).to(mps))
    solution = torch.linalg.ldl_solve(factors, pivots, x.to(mps))
    torch.testing.assert_close(((x + x.mT).to(mps) @ solution).cpu(), x, rtol=1e-2, atol=1e-2)
    assert {"aten::_linalg_eigh", "aten::linalg_qr.out", "aten::ormqr"} <= set(torch_anymps.host_ops())
    assert_same_error(torch.linalg.eigh, torch.ones(2, 3))
    assert_same_error(torch.linalg.svd, torch.full((2, 2), float("nan")))


def test_eigenvalues_of_what_is_not_finite(mps):
    """The CPU's eigvals ends the process."""
    out = torch.empty(0, dtype=torch.complex64, device=mps)
    for value in (float("nan"), float("inf")):
        x = torch.full((2, 2), value, device=mps)
        for op in (torch.linalg.eig, torch.linalg.eigvals, lambda t: torch.linalg.eigvals(t, out=out)):
            with pytest.raises(RuntimeError, match="input tensor should not contain infs or NaNs"):
                op(x)


def test_every_row_is_an_operator_of_pytorch():
    for name in torch_anymps.host_ops():
        operator, _, overload = name.partition(".")
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "MPS")
        assert torch._C._get_schema(operator, overload).name == operator


def test_host_ops_write_where_the_result_stays(mps):
    """No memory of the CPU's is taken for a result on unified memory, so that none is copied."""
    x = well_conditioned(2, 128, 128).to(mps)
    ops = {
        "geqrf": lambda: torch.geqrf(x),
        "householder_product": lambda: torch.linalg.householder_product(x, x[:, 0]),
        "eig": lambda: torch.linalg.eig(x),
        "lstsq": lambda: torch.linalg.lstsq(x, x),
    }
    for name, op in ops.items():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            op()
        taken = [event.self_cpu_memory_usage for event in profile.events() if event.name == "aten::resize_"]
        unified = json.loads(torch.ops.anymps.device_info())["features"]["UMA"]
        assert max(taken, default=0) < (x.nbytes if unified else 1e9), (name, taken)


def test_lstsq_of_batches_has_gradients(mps):
    """The CPU's solution is a part of a larger tensor; ours has memory of its own."""
    a, b = torch.randn(3, 5, 3), torch.randn(3, 5, 2)
    assert_like_cpu(lambda x, y: torch.linalg.lstsq(x, y).solution, a, b, gradients=True)
    out = [torch.empty(0, device=mps) for _ in range(4)]
    out[2] = out[2].long()
    torch.linalg.lstsq(a.detach().to(mps), b.detach().to(mps), out=tuple(out))
    assert out[0].untyped_storage().nbytes() >= 4 * (
        1 + sum((n - 1) * s for n, s in zip(out[0].shape, out[0].stride()))
    )
    torch.testing.assert_close(out[0].cpu(), torch.linalg.lstsq(a.detach(), b.detach()).solution, rtol=1e-4, atol=1e-4)
