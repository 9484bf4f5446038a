"""What modes, subclasses and tracers see of composite operators: PyTorch's own parts, with symbolic sizes too."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


class Recorder(TorchDispatchMode):
    """Names of the operators that come by."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


class Recording(torch.Tensor):
    """A subclass that passes its operators on and keeps their names."""

    names: list = []

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        cls.names.append(function.name())
        unwrapped = torch.utils._pytree.tree_map_only(Recording, lambda t: t.inner, (args, kwargs or {}))
        result = function(*unwrapped[0], **unwrapped[1])
        return torch.utils._pytree.tree_map_only(torch.Tensor, Recording, result)


SEEN = {
    "linear": lambda x: F.linear(x, x[0]),
    "linear with a bias": lambda x: F.linear(x[0], x[0], x[0, :, 0]),
    "dropout": lambda x: F.dropout(x, 0.5),
    "cross_entropy": lambda x: F.cross_entropy(x[0], x[0].softmax(1)),
}


# PyTorch's own parts of these are others for mps from 2.15 on.
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
PARTS_OF_MPS = {"dropout": lambda x: torch.ops.aten.dropout.default._op_dk(COMPOSITE, x, 0.5, True)}


@pytest.mark.parametrize("function", SEEN)
def test_modes_and_subclasses_see_what_they_see_on_the_cpu(mps, function):
    x = torch.randn(2, 3, 3)
    names = []
    reference = (x.to(mps), PARTS_OF_MPS[function]) if function in PARTS_OF_MPS else (x, SEEN[function])
    for given, call in (reference, (x.to(mps), SEEN[function])):
        with Recorder() as recorder:
            call(given)
        Recording.names = []
        call(Recording(given))
        names.append((recorder.names, Recording.names))
    assert names[1] == names[0] and names[0][0]


def test_sdpa_kernel_chooses(mps):
    """The math shows its products, the fused operator itself; so does _fused_sdp_choice."""
    q = torch.randn(1, 2, 3, 4, device=mps)
    fused = "aten::_scaled_dot_product_fused_attention_overrideable"
    for backend in (SDPBackend.MATH, SDPBackend.OVERRIDEABLE, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend), Recorder() as recorder:
            F.scaled_dot_product_attention(q, q, q)
            choice = torch._fused_sdp_choice(q, q, q)
        is_math = backend == SDPBackend.MATH
        assert (fused in recorder.names) != is_math and ("aten::bmm" in recorder.names) == is_math
        assert choice == int(SDPBackend.MATH if is_math else SDPBackend.OVERRIDEABLE)
    leaf = q.clone().requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        by_math = F.scaled_dot_product_attention(leaf, leaf, leaf)
    assert "Fused" not in by_math.grad_fn.name()
    with sdpa_kernel([]), pytest.raises(RuntimeError, match="No viable backend"):
        F.scaled_dot_product_attention(q, q, q)


def test_flop_counter(mps):
    """Linear as on the CPU, attention as PyTorch counts it on cuda: two products forward, five backward."""

    def step(device):
        layer, x = nn.Linear(4, 3).to(device), torch.randn(2, 5, 4, device=device, requires_grad=True)
        with FlopCounterMode(display=False) as whole:
            layer(x).sum().backward()
        loss = layer(x).sum()
        with FlopCounterMode(display=False) as of_backward:
            loss.backward()
        return whole.get_total_flops(), of_backward.get_total_flops()

    assert step(mps) == step("cpu")
    q = torch.randn(1, 2, 3, 4, device=mps, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        F.scaled_dot_product_attention(q, q, q).sum().backward()
    assert counter.get_total_flops() == (2 + 5) * 2 * (2 * 3 * 3 * 4)


class Block(nn.Module):
    """Linear, dropout and causal attention over two heads."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        q, k, v = self.project(self.drop(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("dynamic", [None, True])
def test_graphs_for_all_batches(mps, dynamic):
    """aot_eager's training of dropout, linear and attention takes new batches with no more graphs than on the CPU."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counts = []
    for device in ("cpu", mps):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        block = Block().to(device)
        compiled = torch.compile(block, backend=counter, dynamic=dynamic)
        for batch in (2, 3, 5, 7):
            compiled(torch.randn(batch, 4, 8, device=device)).sum().backward()
        counts.append(counter.frame_count)
    assert counts[1] == counts[0] < 4
    x = torch.randn(4, 4, 8, device=mps)
    torch.testing.assert_close(torch.compile(block.eval(), backend="aot_eager", dynamic=True)(x), block(x))


@pytest.mark.parametrize("make", [Block, lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)])
def test_export_with_a_free_batch(mps, make):
    module = make().eval().to(mps)
    shapes = ({0: torch.export.Dim("batch", min=2, max=99)},)
    program = torch.export.export(module, (torch.randn(2, 4, 8, device=mps),), dynamic_shapes=shapes)
    x = torch.randn(5, 4, 8, device=mps)
    for exported in (program, program.run_decompositions()):
        torch.testing.assert_close(exported.module()(x), module(x))


def test_symbolic_traces(mps):
    """make_fx with symbolic sizes, of forward and backward, serves other sizes."""

    def step(x, w, mask):
        q = F.linear(F.dropout(x, 0.5, training=False), w).unsqueeze(1)
        out = F.scaled_dot_product_attention(q, q, q, mask)
        return torch.autograd.grad(out.square().sum() + F.dropout(x, 0.5).sum() * 0, (x, w))

    def given(batch, length):
        leaves = (
            t.requires_grad_() for t in (torch.randn(batch, length, 4, device=mps), torch.randn(4, 4, device=mps))
        )
        return *leaves, torch.ones(length, length, dtype=torch.bool, device=mps).tril()

    torch.manual_seed(0)
    graph = make_fx(step, tracing_mode="symbolic")(*given(2, 3))
    other = given(5, 6)
    # Gradients are up to 300, so that what is left of a sum has errors of 300 roundings.
    torch.testing.assert_close(graph(*other), step(*other), rtol=1e-4, atol=1e-3)


def test_distributed_tensors(mps):
    """DTensor knows how to divide PyTorch's own operators only."""
    import torch.distributed as dist
    from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        mesh = DeviceMesh("mps", [0])
        torch.manual_seed(0)
        parts = [torch.randn(s, device=mps) / 2 for s in ((2, 3, 8), (8, 8), (8,))]
        leaves = [
            DTensor.from_local(t.clone(), mesh, [placement], run_check=False).requires_grad_()
            for t, placement in zip(parts, (Replicate(), Shard(0), Shard(0)))
        ]
        whole = [t.clone().requires_grad_() for t in parts]
        results = []
        for x, w, b in (leaves, whole):
            heads = F.linear(x, w, b).unflatten(-1, (2, 4)).transpose(1, 2)
            F.scaled_dot_product_attention(heads, heads, heads).sin().sum().backward()
            results.append([t.grad for t in (x, w, b)])
        torch.testing.assert_close([t.full_tensor() for t in results[0]], results[1], rtol=1e-4, atol=1e-5)
    finally:
        dist.destroy_process_group()


def test_every_composite_with_a_kernel_here_leaves_the_unusual_to_pytorch(mps):
    """A new one needs DefaultDispatchOr of ops/default_dispatch.h at autograd's key."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    composites = {
        name
        for name in torch._C._dispatch_get_all_op_names()
        if has_kernel(name, "CompositeImplicitAutograd") and has_kernel(name, "MPS")
    }
    bare = {name for name in composites if not has_kernel(name, "AutogradMPS")}
    # of which PyTorch has kernels for the CPU or cuda, with rules for all that wraps a tensor
    assert bare == {"aten::mish_backward", "aten::silu_backward", "aten::_fused_rms_norm"}
    assert {"aten::linear", "aten::dropout", "aten::scaled_dot_product_attention"} <= composites
