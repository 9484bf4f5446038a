"""batch_norm under autocast: float32 results and statistics from 16 bits, without a copy of them in float32."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from both_devices import kernels
from compare import ONE_ROUNDING as ROUNDING

DTYPES = [torch.float16, torch.bfloat16]
SHAPES = [(6, 5), (5, 3, 7), (3, 8, 7, 7), (2, 6, 8, 4), (2, 4, 3, 2, 5), (64, 1, 9, 9)]


class Case:
    """What a module hands to batch_norm, on the CPU; x has 16 bits."""

    def __init__(self, x, affine="wb", running=True):
        channels = x.shape[1]
        self.x = x
        self.w = torch.randn(channels) if "w" in affine else None
        self.b = torch.randn(channels) if "b" in affine else None
        self.running = [torch.randn(channels), torch.rand(channels) + 0.5] if running else [None, None]
        self.grad = torch.randn(x.shape)

    def parameters(self, convert):
        return [None if t is None else convert(t).requires_grad_() for t in (self.w, self.b)]

    def exact(self, training):
        """In float64 on the CPU: output, statistics, gradients of x, w and b."""
        x = self.x.double().requires_grad_()
        w, b = self.parameters(lambda t: t.double())
        running = [None if t is None else t.double() for t in self.running]
        y = F.batch_norm(x, *running, w, b, training)
        return [y, *running, *gradients(y, [x, w, b], self.grad.double())]

    def on_mps(self, training, own_way, view=lambda t: t):
        """The same on mps: under autocast, or with PyTorch's own casts by hand."""
        leaf = self.x.to("mps").requires_grad_()
        x = view(leaf)
        w, b = self.parameters(lambda t: t.to("mps"))
        running = [None if t is None else t.to("mps") for t in self.running]
        if own_way:
            y = F.batch_norm(x.float(), *running, w, b, training)
        else:
            with torch.autocast("mps", self.x.dtype):
                y = F.batch_norm(x, *running, w, b, training)
        grad = view(self.grad.to("mps"))
        return [y, *running, *gradients(y, [leaf, w, b], grad)]


def gradients(y, inputs, grad):
    found = iter(torch.autograd.grad(y, [t for t in inputs if t is not None], grad))
    return [None if t is None else next(found) for t in inputs]


def check(case, training, view=lambda t: t, exact=True):
    """As PyTorch's way has it, to the bit where both run the same kernels."""
    actual, own = (case.on_mps(training, own_way, view) for own_way in (False, True))
    assert actual[0].stride() == own[0].stride()
    dtypes = [torch.float32] * 3 + [case.x.dtype] + [torch.float32] * 2
    for a, o, dtype in zip(actual, own, dtypes, strict=True):
        if o is None:
            assert a is None
            continue
        assert a.dtype == o.dtype == dtype
        tolerance = 0 if exact else ROUNDING[dtype] * 2
        torch.testing.assert_close(a.cpu(), o.cpu(), rtol=tolerance, atol=tolerance)
    return actual


def check_with_cpu(case, training):
    """And close to float64."""
    for a, e in zip(check(case, training), case.exact(training), strict=True):
        if e is not None:
            tolerance = ROUNDING[a.dtype]
            scale = max(1.0, e.abs().max().item())
            torch.testing.assert_close(a.cpu().double(), e, rtol=tolerance, atol=1e-5 * scale)


def of_16_bits(shape, dtype, layout=torch.contiguous_format):
    return (torch.randn(shape) * 2 + 0.5).to(dtype).contiguous(memory_format=layout)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values(dtype, training, shape):
    for affine, running in (("wb", True), ("", True), ("w", True), ("b", True), ("wb", False)):
        if training or running:
            check_with_cpu(Case(of_16_bits(shape, dtype), affine, running), training)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_channels_last(dtype, training):
    for shape, layout in (((3, 8, 5, 7), torch.channels_last), ((2, 6, 3, 2, 5), torch.channels_last_3d)):
        check_with_cpu(Case(of_16_bits(shape, dtype, layout)), training)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(8, 64, 7, 7), (3, 132, 5, 5), (16, 8, 9, 11), (4, 12, 14, 14), (70, 8, 28, 28)])
def test_words(dtype, shape):
    """Planes that GPUs read as words of four elements, and rows of channels: the kernels of float32, but for copies."""
    for layout in (torch.contiguous_format, torch.channels_last):
        case = Case(of_16_bits(shape, dtype, layout))
        check_with_cpu(case, True)
        actual, own = (kernels(lambda c=case, o=own: c.on_mps(True, o)) for own in (False, True))
        assert actual == {name for name in own if "copy_f32" not in name}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_address(dtype):
    """Slices at addresses that are no multiples of what a load takes, and with strides."""
    views = [
        lambda t: t[1:],
        lambda t: t[:, 1:],
        lambda t: t[:, :, 1:, ::2],
        lambda t: t.transpose(2, 3),
        lambda t: t[:1].expand(3, -1, -1, -1),
        lambda t: t.flatten()[1:1153].view(3, 8, 6, 8),
        lambda t: t.flatten()[3:1179].view(3, 8, 7, 7),
    ]
    for view, training in itertools.product(views, (True, False)):
        case = Case(of_16_bits((4, 8, 7, 7), dtype))
        channels = view(case.x).shape[1]
        case.w, case.b, *case.running = (t[:channels] for t in (case.w, case.b, *case.running))
        check(case, training, view, exact=False)  # GPUs may read a copy in words, and the slice not


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_some(dtype):
    x, w, b = of_16_bits((4, 8, 7, 7), dtype).to("mps"), torch.randn(8, device="mps"), torch.randn(8, device="mps")
    grad = torch.randn(x.shape, device="mps")
    for wanted in itertools.product((True, False), repeat=3):
        leaves = [t.detach().requires_grad_(r) for t, r in zip((x, w, b), wanted, strict=True)]
        with torch.autocast("mps", dtype):
            y = F.batch_norm(leaves[0], None, None, *leaves[1:], training=True)
        own = F.batch_norm(leaves[0].float(), None, None, *leaves[1:], training=True)
        assert y.requires_grad == any(wanted)
        assert torch.equal(y, own)
        if any(wanted):
            asked = [t for t in leaves if t.requires_grad]
            for a, e in zip(torch.autograd.grad(y, asked, grad), torch.autograd.grad(own, asked, grad), strict=True):
                assert a.dtype == e.dtype and torch.equal(a, e)


def test_outlying_values():
    """Infinities and NaN stay in their channels; gradients beyond float16 become infinite."""
    case = Case(of_16_bits((4, 8, 3, 3), torch.float16))
    case.x[0, 1, 0, 0], case.x[1, 2, 0, 0] = float("nan"), float("inf")
    case.grad *= 1e6
    for training in (True, False):
        actual, own = (case.on_mps(training, own_way) for own_way in (False, True))
        for a, o in zip(actual, own, strict=True):
            torch.testing.assert_close(a, o, rtol=0, atol=0, equal_nan=True)
        assert actual[3].isinf().any()


def test_running_statistics_of_modules():
    for momentum in (0.1, None, 1.0):
        modules = [torch.nn.BatchNorm2d(5, momentum=momentum).to("mps") for _ in range(2)]
        for step in range(3):
            x = (torch.randn(4, 5, 3, 3) + step).half().to("mps")
            with torch.autocast("mps", torch.float16):
                actual = modules[0](x)
            assert torch.equal(actual, modules[1](x.float()))
        for a, e in zip(modules[0].buffers(), modules[1].buffers(), strict=True):
            assert a.dtype == e.dtype and torch.equal(a, e)


@pytest.mark.parametrize("shape", [(0, 4, 3, 3), (2, 4, 0, 3)])
def test_empty(shape):
    results = []
    for device in ("mps", "cpu"):
        x = torch.empty(shape, dtype=torch.bfloat16, device=device, requires_grad=True)
        module = torch.nn.BatchNorm2d(4).to(device)
        with torch.autocast("mps", torch.bfloat16):
            y = module(x if device == "mps" else x.float())
        y.sum().backward()
        results.append([y, *module.buffers(), x.grad, module.weight.grad, module.bias.grad])
    for a, e in zip(*results, strict=True):
        torch.testing.assert_close(a.cpu(), e, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_second_derivatives(dtype, training):
    case = Case(of_16_bits((4, 6, 5, 5), dtype))

    def derivatives(device, by_autocast):
        x = case.x.to(device).requires_grad_()
        w, b = case.parameters(lambda t: t.to(device))
        running = [t.to(device) for t in case.running]
        with torch.autocast("mps", dtype, enabled=by_autocast):
            y = F.batch_norm(x if by_autocast else x.float(), *running, w, b, training)
        first = torch.autograd.grad(y.sin().sum(), [x, w, b], create_graph=True)
        second = torch.autograd.grad(sum((t.float() ** 2).sum() for t in first), [x, w])
        return [t.detach().cpu().float() for t in (*first, *second)]

    for a, e in zip(derivatives("mps", True), derivatives("cpu", False), strict=True):
        scale = max(1.0, e.abs().max().item())
        torch.testing.assert_close(a, e, rtol=ROUNDING[dtype] * 4, atol=ROUNDING[dtype] * 4 * scale)


@pytest.fixture
def module():
    return torch.nn.BatchNorm2d(6).to("mps")


@pytest.fixture
def x():
    return of_16_bits((4, 6, 5, 5), torch.bfloat16).to("mps").requires_grad_()


def expected_of(module, x, grad=None):
    """Output and gradients by casts; the running statistics are left as they were."""
    running = [b.clone() for b in (module.running_mean, module.running_var)]
    y = F.batch_norm(x.float(), *running, module.weight, module.bias, module.training)
    inputs = [x, module.weight, module.bias]
    return y.detach(), torch.autograd.grad(y, inputs, torch.ones_like(y) if grad is None else grad)


def autocast():
    return torch.autocast("mps", torch.bfloat16)


def test_autograd_keeps_sixteen_bits(module, x):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t), autocast():
        y = module(x)
    images = [t for t in saved if t.numel() >= x.numel()]
    assert [t.data_ptr() for t in images] == [x.data_ptr()]
    assert all(t.dtype == torch.float32 for t in saved if t.numel() < x.numel())
    grad = torch.randn_like(y)
    _, expected = expected_of(module, x, grad)
    for a, e in zip(torch.autograd.grad(y, [x, module.weight, module.bias], grad), expected, strict=True):
        assert torch.equal(a, e)


def test_an_image_changed_in_place_is_an_error(module, x):
    """As without autocast: what autograd keeps is the image itself."""
    image = x * 1
    with autocast():
        y = module(image)
    image.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_no_conversion_of_images(module):
    """Convolution and norm, forward and backward."""
    conv = torch.nn.Conv2d(6, 6, 1, bias=False, dtype=torch.bfloat16).to("mps")
    x = torch.randn(4, 6, 5, 5, dtype=torch.bfloat16, device="mps")
    grad = torch.randn(4, 6, 5, 5, device="mps")

    def step():
        with autocast():
            y = module(conv(x))
        y.backward(grad)

    step()  # gradients exist, whose sums are no copies
    assert not [k for k in kernels(step) if "copy" in k]
    assert [k for k in kernels(lambda: module(conv(x).float()).backward(grad)) if "copy" in k]


def test_without_gradient(module, x):
    for training in (True, False):
        module.train(training)
        expected, _ = expected_of(module, x)
        with torch.no_grad(), autocast():
            assert torch.equal(module(x), expected)
    with torch.inference_mode(), autocast():
        inner = x * 1
        assert not [k for k in kernels(lambda: module(inner)) if "copy" in k]
        actual = module(inner)
    assert torch.equal(actual, expected) and actual.is_inference()
    with autocast():
        y = module(inner)  # what autograd cannot save is copied, as PyTorch does
    y.sum().backward()
    assert torch.equal(y, expected)


def test_function_transforms(module, x):
    module.eval()
    expected, (expected_grad, *_) = expected_of(module, x)

    def call(x):
        with autocast():
            return module(x)

    torch.testing.assert_close(torch.func.grad(lambda x: call(x).sum())(x), expected_grad)
    each = torch.func.vmap(lambda x: call(x[None])[0])(x)
    torch.testing.assert_close(each, expected, rtol=1e-5, atol=1e-4)
    gradients = torch.func.vmap(torch.func.grad(lambda x: call(x[None]).sum()))(x)
    torch.testing.assert_close(gradients, expected_grad)
    y = call(x)
    batched = torch.autograd.grad(y.sum((1, 2, 3)), x, torch.eye(4, device="mps"), is_grads_batched=True)[0]
    torch.testing.assert_close(batched.sum(0), expected_grad)


def test_forward_mode(module, x):
    import torch.autograd.forward_ad as fwd

    direction = torch.randn_like(x)
    expected, (expected_grad, *_) = expected_of(module, x)
    with fwd.dual_level():
        with autocast():
            y = module(fwd.make_dual(x, direction))
        value, tangent = fwd.unpack_dual(y)
        dual = fwd.make_dual(x.float(), direction.float())
        reference = F.batch_norm(dual, None, None, module.weight, module.bias, True)
        torch.testing.assert_close(tangent, fwd.unpack_dual(reference).tangent)
    assert torch.equal(value, expected)


def test_modes_and_subclasses_see_pytorchs_operators(module, x):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function.name())
            return function(*args, **(kwargs or {}))

    with Watch(), autocast():
        module(x)
    assert "aten::_to_copy" in seen and any("native_batch_norm" in name for name in seen)


def test_compiled_checkpointed_and_offloaded(module, x):
    from torch.utils.checkpoint import checkpoint

    module.eval()
    expected, expected_grads = expected_of(module, x)

    def call(x):
        with autocast():
            return module(x)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    with torch.autograd.graph.save_on_cpu():
        offloaded = call(x)
    checkpointed = (checkpoint(call, x, use_reentrant=reentrant) for reentrant in (False, True))
    for y in (compiled(x), *checkpointed, offloaded):
        torch.testing.assert_close(y, expected)
        module.zero_grad()
        x.grad = None
        y.backward(torch.ones_like(y))
        for t, e in zip((x, module.weight, module.bias), expected_grads, strict=True):
            torch.testing.assert_close(t.grad, e)


def test_other_dtypes_go_pytorchs_way(x):
    """float32 inputs, and parameters or statistics of 16 bits, whose copies take the updates."""
    w, b = torch.ones(6, device="mps", dtype=torch.bfloat16), torch.zeros(6, device="mps")
    mean, var = torch.zeros(6, device="mps", dtype=torch.bfloat16), torch.ones(6, device="mps")
    expected = F.batch_norm(x.float(), None, None, training=True)
    with autocast():
        for y in (F.batch_norm(x.float(), None, None, training=True), F.batch_norm(x, mean, var, w, b, True)):
            assert y.dtype == torch.float32
            torch.testing.assert_close(y, expected)
    assert not mean.any() and not torch.equal(var.cpu(), torch.ones(6))


def test_errors():
    def message(device, case):
        with torch.autocast("mps", torch.bfloat16), pytest.raises(Exception) as error:
            case(lambda *shape: torch.ones(shape, device=device), torch.bfloat16 if device == "mps" else torch.float32)
        return type(error.value), str(error.value).split("\n")[0]

    for case in (
        lambda ones, dtype: F.batch_norm(ones(4, 6).to(dtype), ones(5), ones(5)),
        lambda ones, dtype: F.batch_norm(ones(4, 6).to(dtype), ones(6), ones(6), ones(5)),
        lambda ones, dtype: F.batch_norm(ones(4, 6).to(dtype), None, None),
        lambda ones, dtype: F.batch_norm(ones(4, 6).to(dtype), ones(6), None),
        lambda ones, dtype: F.batch_norm(ones(4).to(dtype), None, None, training=True),
    ):
        assert message("mps", case) == message("cpu", case)


def test_modules_built_on_it(x):
    """instance_norm calls batch_norm with statistics of every sample."""
    with autocast():
        y = F.instance_norm(x)
    torch.testing.assert_close(y, F.instance_norm(x.float()))
