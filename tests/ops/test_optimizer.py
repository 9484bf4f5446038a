"""Optimizers, plain, foreach and fused, and gradient scaling against the CPU."""

import inspect

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torch_anymps

CASES = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "maximize": True}),
    (torch.optim.Adam, {"lr": 1e-2}),
    (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 1e-2, "maximize": True}),
    (torch.optim.Adagrad, {"lr": 0.1}),
    (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.01, "maximize": True}),
    (torch.optim.AdamW, {"lr": 1e-2, "amsgrad": True, "betas": (0.8, 0.95), "eps": 1e-6}),
]
SHAPES = [(5,), (3, 4), (1,), (257, 33), (2, 3, 4, 5)]


class OperatorNames(TorchDispatchMode):
    """Notes the names of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function._schema.name.removeprefix("aten::"))
        return function(*args, **(kwargs or {}))


def parameters(device, dtype=torch.float32):
    torch.manual_seed(0)
    tensors = [torch.randn(s, dtype=dtype) for s in SHAPES]
    tensors[-1] = tensors[-1].contiguous(memory_format=torch.channels_last)
    return [torch.nn.Parameter(t.to(device)) for t in tensors]


def steps(optimizer, params, count=4):
    torch.manual_seed(1)
    for _ in range(count):
        for p in params:
            p.grad = torch.randn(p.shape).to(p.dtype).to(p.device)
        optimizer.step()


@pytest.mark.parametrize(
    "form", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=["plain", "foreach", "fused"]
)
@pytest.mark.parametrize("kind,options", CASES)
def test_same_steps_as_the_cpu(kind, options, form):
    ours, theirs = parameters("mps"), parameters("cpu")
    steps(kind(ours, **options, **form), ours)
    steps(kind(theirs, **options, foreach=False), theirs)
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fused_in_half_types(dtype):
    ours = parameters("mps", dtype)
    theirs = [torch.nn.Parameter(p.detach().cpu().float()) for p in ours]
    steps(torch.optim.AdamW(ours, lr=1e-2, fused=True), ours)
    steps(torch.optim.AdamW(theirs, lr=1e-2, foreach=False), theirs)
    for a, b in zip(ours, theirs):
        # Ours rounds parameters and state to the half type after every step.
        torch.testing.assert_close(a.detach().cpu().float(), b.detach(), rtol=2e-2, atol=2e-2)


def test_fused_learning_rate_as_a_tensor_and_capturable_state():
    for device in ("cpu", "mps"):
        ours, theirs = parameters("mps"), parameters("cpu")
        steps(torch.optim.Adam(ours, lr=torch.tensor(1e-2, device=device), fused=True), ours)
        steps(torch.optim.Adam(theirs, lr=1e-2), theirs)
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_gradient_scaler_skips_steps_with_infinite_gradients(fused):
    params = parameters("mps")
    before = [p.detach().clone() for p in params]
    optimizer = torch.optim.AdamW(params, lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler("mps", init_scale=1024.0, growth_interval=2)
    scaler.scale(torch.ones(1, device="mps"))  # the scale is made at the first use
    for step, poison in enumerate((torch.inf, 1.0, 1.0, torch.nan)):
        for p in params:
            p.grad = torch.ones_like(p) * 1024.0
        params[2].grad.fill_(poison)
        scaler.unscale_(optimizer) if step == 1 else None
        scaler.step(optimizer)
        scaler.update()
        moved = any(not torch.equal(a.detach(), b) for a, b in zip(params, before))
        assert moved == (step in (1, 2)), step
        before = [p.detach().clone() for p in params]
    # halved, kept, doubled, halved
    assert scaler.get_scale() == 512.0


def test_complex_gradients_are_not_unscaled(mps):
    scaler = [torch.zeros(1, device=mps), torch.ones(1, device=mps)]
    with pytest.raises(NotImplementedError, match="unscale_cpu\" not implemented for 'ComplexFloat'"):
        torch._amp_foreach_non_finite_check_and_unscale_([torch.ones(2, dtype=torch.cfloat, device=mps)], *scaler)


def test_many_tensors_of_mixed_dtypes_unscale_at_once():
    grads = [
        torch.full((n,), 8.0, dtype=d, device="mps") for n in (1, 300, 5000) for d in (torch.float32, torch.float16)
    ]
    found, inverse = torch.zeros(1, device="mps"), torch.full((1,), 0.25, device="mps")
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
    assert found.item() == 0.0
    assert all((g == 2.0).all().item() for g in grads)
    grads[3][17] = torch.nan
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
    assert found.item() == 1.0


KINDS = {
    "SGD": {"momentum": 0.9},
    "RMSprop": {"momentum": 0.9},
    **dict.fromkeys(
        ["Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "Rprop"], {}
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_optimizers_work_on_all_tensors_at_once_by_default(kind):
    def trained(device):
        params = parameters(device)
        optimizer = getattr(torch.optim, kind)(params, lr=1e-2, **KINDS[kind])
        torch.manual_seed(1)
        for _ in range(3):
            for p in params:
                p.grad = torch.randn(p.shape).to(device)
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            optimizer.step()
        return params

    with OperatorNames() as seen:
        ours = trained("mps")
    assert any(name.startswith("_foreach_") for name in seen.names)
    for a, b in zip(ours, trained("cpu")):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=2e-5, atol=2e-6)


def test_a_step_takes_as_many_dispatches_for_many_tensors_as_for_few(mps):
    def dispatches(count):
        params = [torch.nn.Parameter(torch.ones(7, device=mps)) for _ in range(count)]
        optimizer = torch.optim.Adam(params)
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()  # makes the state
        with torch_anymps.profile() as profile:
            optimizer.step()
        return sum(k.calls for k in profile.kernels)

    assert dispatches(50) == dispatches(2)


def test_weight_averaging_by_lists_is_that_of_the_cpu(mps):
    def averaged(device):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3).to(device)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        for _ in range(3):
            with torch.no_grad():
                model.weight.add_(1.0)
            average.update_parameters(model)
        return average.module.weight.detach().cpu()

    torch.testing.assert_close(averaged("mps"), averaged("cpu"))


def test_weight_averaging_of_integer_buffers_is_that_of_the_cpu(mps):
    def averaged(device):
        model = torch.nn.BatchNorm1d(3).to(device)
        average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
        for k in range(4):
            model.num_batches_tracked.fill_(7 * k * k)
            with torch.no_grad():
                model.running_mean.fill_(k)
            average.update_parameters(model)
        return [buffer.cpu() for buffer in average.module.buffers()]

    for actual, expected in zip(averaged(mps), averaged("cpu"), strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("steps", [[], [torch.zeros(2)]], ids=["missing", "two elements"])
def test_fused_steps_of_the_wrong_number_are_refused(mps, steps):
    tensors = [torch.zeros(3, device=mps)]
    steps = [s.to(mps) for s in steps]
    with pytest.raises(RuntimeError, match="same number|one element"):
        torch._fused_adam_(
            tensors, tensors, tensors, tensors, [], steps,
            lr=0.1, beta1=0.9, beta2=0.9, weight_decay=0, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip


# SparseAdam takes sparse gradients alone, of which there are none on mps.
NO_CASES = (torch.optim.Optimizer, torch.optim.SparseAdam)
OPTIMIZERS = [
    kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind not in NO_CASES
]


def descend(kind, device, **options):
    """Parameters, of a shape that every optimizer takes, after three steps towards 1."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(4, 3).to(device)) for _ in range(3)]
    if kind is torch.optim.LBFGS:
        options["max_iter"] = 3
    optimizer = kind(params, **options)

    def loss():
        optimizer.zero_grad()
        total = sum(((p - 1) ** 2).sum() for p in params)
        total.backward()
        return total

    for _ in range(3):
        if kind is torch.optim.LBFGS:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()
    return [p.detach().cpu() for p in params]


TAKES = {kind: inspect.signature(kind).parameters for kind in OPTIMIZERS}


@pytest.mark.parametrize("device", ["cpu", "mps"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_rate_that_is_a_tensor(kind, device, mps):
    """By default, on the CPU or beside the parameters, works as a number does."""
    given = [{}] + [{"momentum": 0.9}] * ("momentum" in TAKES[kind]) + [{"amsgrad": True}] * ("amsgrad" in TAKES[kind])
    for options in given:
        rate = torch.tensor(0.01, device=device)
        wanted = descend(kind, "cpu", lr=0.01, **options)
        for a, b in zip(descend(kind, "mps", lr=rate, **options), wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)
        assert rate.item() == torch.tensor(0.01).item()


@pytest.mark.parametrize("kind", [kind for kind in OPTIMIZERS if "capturable" in TAKES[kind]])
def test_capturable_steps_are_refused_as_on_the_cpu(kind, mps):
    """Nothing captures graphs here."""
    for device in ("cpu", "mps"):
        with pytest.raises(AssertionError, match="If capturable=True, .* must be on supported devices"):
            descend(kind, device, lr=torch.tensor(0.01, device=device), capturable=True)


@pytest.mark.parametrize("kind", [kind for kind in OPTIMIZERS if "betas" in TAKES[kind]])
def test_betas_that_are_tensors(kind, mps):
    betas = torch.tensor(0.8), torch.tensor(0.95)
    wanted = descend(kind, "cpu", betas=betas)
    for a, b in zip(descend(kind, "mps", betas=betas), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        with pytest.raises(ValueError, match="not supported for capturable=False and foreach=True"):
            descend(kind, "mps", betas=betas, foreach=True)
