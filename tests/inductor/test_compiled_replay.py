"""torch.compile(mode="reduce-overhead"): calls that are replayed give what the same calls give eagerly."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch._inductor import cudagraph_utils

import torch_anymps
from torch_anymps.inductor import replay
from torch_anymps.inductor.replay import MAX_CAPTURES, MAX_MOVED_BYTES, ReplayPolicy

functions = []  # compiled graphs that may be replayed


def replayed(function, **options):
    torch._dynamo.reset()
    functions.clear()
    return torch.compile(function, mode="reduce-overhead", **options)


class ListedFunction(replay._Function):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        functions.append(self)


@pytest.fixture(autouse=True)
def clean():
    yield
    functions.clear()


class CountingGraph(torch.accelerator.Graph):
    def replay(self):
        self.count = getattr(self, "count", 0) + 1
        super().replay()


@pytest.fixture(autouse=True)
def count_replays(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "Graph", CountingGraph)
    monkeypatch.setattr(replay, "_Function", ListedFunction)


def replay_counts():
    return [[capture.graph.count for capture in f.captures] for f in functions]


def net_of(mps, dropout=0.0):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32, bias=False), torch.nn.BatchNorm1d(32), torch.nn.GELU(), torch.nn.Dropout(dropout),
        torch.nn.Linear(32, 4),
    ).to(mps)  # fmt: skip


def test_inference(mps):
    net = net_of(mps).eval()
    compiled = replayed(net)
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(8, 16, device=mps)
            torch.testing.assert_close(compiled(x), net(x))
    assert replay_counts() == [[5]]


def test_outputs_that_live_are_not_overwritten(mps):
    compiled = replayed(lambda x: (x * 2, (x + 1)[1:]))
    with torch.no_grad():
        inputs = [torch.randn(4, 5, device=mps) for _ in range(6)]
        outputs = [compiled(x) for x in inputs]
        views = [first[0] for first, _ in outputs]
        outputs += [compiled(x) for x in inputs]
    for x, (first, second), view in zip(inputs, outputs, views, strict=False):
        torch.testing.assert_close((first, second, view), (x * 2, (x + 1)[1:], x[0] * 2))
    assert replay_counts() == [[11]]


def test_large_outputs_that_live_are_not_overwritten_either(mps):
    compiled = replayed(lambda x: x * 2)
    with torch.no_grad():
        inputs = [torch.randn(MAX_MOVED_BYTES // 4 + 1, device=mps) for _ in range(4)]
        outputs = [compiled(x) for x in inputs]
        for x, y in zip(inputs, outputs, strict=True):
            torch.testing.assert_close(y, x * 2)
        assert replay_counts() == [[1]]
        del outputs, y
        compiled(inputs[0])
    assert replay_counts() == [[2]]


def test_an_output_as_the_next_input(mps):
    compiled = replayed(lambda x: x * 2 + 1)
    x = torch.ones(7, device=mps)
    with torch.no_grad():
        for _ in range(8):
            x = compiled(x)
    assert x.tolist() == [511.0] * 7
    assert replay_counts() == [[7]]


def test_outputs_outlive_the_compiled_function(mps):
    compiled = replayed(lambda x: x * 2)
    with torch.no_grad():
        for _ in range(3):
            y = compiled(torch.ones(1000, device=mps))
    del compiled
    torch._dynamo.reset()
    functions.clear()
    torch.mps.empty_cache()
    others = [torch.zeros(1000, device=mps) for _ in range(10)]
    assert y.tolist() == [2.0] * 1000
    assert len(others) == 10


@pytest.mark.parametrize("set_to_none", [True, False])
def test_training_steps_are_those_of_eager_code(mps, set_to_none):
    net, twin = net_of(mps), net_of(mps)
    compiled = replayed(net)
    optimizer, other = (torch.optim.AdamW(n.parameters(), lr=0.01) for n in (net, twin))
    x, y = torch.randn(64, 16, device=mps), torch.randint(0, 4, (64,), device=mps)
    losses = []
    for step in range(12):
        batch = slice(step % 2, None, 2)
        torch.compiler.cudagraph_mark_step_begin()
        for call, o in ((compiled, optimizer), (twin, other)):
            o.zero_grad(set_to_none=set_to_none)
            loss = F.cross_entropy(call(x[batch]), y[batch])
            loss.backward()
            o.step()
            losses.append(loss.detach())
    torch.testing.assert_close(losses[::2], losses[1::2])
    torch.testing.assert_close(net.state_dict(), twin.state_dict(), rtol=1e-4, atol=1e-5)  # BatchNorm's statistics, too
    assert losses[-1].item() < 0.8 * losses[0].item()
    assert replay_counts() == [[11], [11]]


def test_gradients_accumulate(mps):
    net, twin = net_of(mps).eval(), net_of(mps).eval()
    compiled = replayed(net)
    batches = torch.randn(6, 8, 16, device=mps)
    for x in batches:
        compiled(x).sum().backward()
        twin(x).sum().backward()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    assert replay_counts() == [[5], [5]]


def test_several_forwards_before_their_backwards(mps):
    net, twin = net_of(mps).eval(), net_of(mps).eval()
    compiled = replayed(net)
    for _ in range(4):
        batches = torch.randn(3, 8, 16, device=mps)
        outputs = [compiled(x) for x in batches], [twin(x) for x in batches]
        for losses in outputs:
            for y in losses:
                y.square().sum().backward()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_dropout_draws_as_without_replay_and_backward_agrees(mps):
    net = net_of(mps, dropout=0.5)
    net[1].eval()
    compiled = replayed(net)
    torch.manual_seed(5)
    x = torch.ones(8, 16, device=mps, requires_grad=True)
    results = []
    for _ in range(5):
        y = compiled(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        results.append((y.detach().clone(), gradient.clone()))
    assert replay_counts() == [[4], [4]]
    for (y, _), (z, _) in zip(results, results[1:], strict=False):
        assert not torch.equal(y, z)
    y, gradient = results[0]  # ran as it is
    torch.manual_seed(5)
    again = compiled(x)
    torch.testing.assert_close(again, y)
    torch.testing.assert_close(torch.autograd.grad(again.sum(), x)[0], gradient)


def test_attention_with_dropout_is_replayed_in_both_directions(mps):
    def function(q):
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3) * 2

    compiled = replayed(function)
    q = torch.randn(1, 2, 33, 16, device=mps, requires_grad=True)
    for seed in range(7):
        torch.manual_seed(seed)
        y = compiled(q)
        (gradient,) = torch.autograd.grad(y.square().sum(), q)
        torch.manual_seed(seed)
        expected = function(q)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(gradient, torch.autograd.grad(expected.square().sum(), q)[0])
    assert replay_counts() == [[6], [5]]


def test_graph_breaks_pass_tensors_on_without_copies(mps):
    def function(x, w):
        y = (x @ w).relu()
        torch._dynamo.graph_break()
        return (y @ w).sin()

    compiled = replayed(function)
    w = torch.randn(16, 16, device=mps)
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(4, 16, device=mps)
            torch.testing.assert_close(compiled(x, w), function(x, w))
    second = functions[1].captures[0]
    assert len(second.copied) == 1  # w; y is read where the first graph wrote it


def test_an_input_that_is_written(mps):
    """A cache of keys, say: it is read and written where it is."""

    def function(cache, x, at):
        cache.index_copy_(0, at, x)
        return cache.sum(0)

    compiled = replayed(function)
    cache, twin = torch.zeros(8, 3, device=mps), torch.zeros(8, 3, device=mps)
    with torch.no_grad():
        for i in range(8):
            x, at = torch.randn(1, 3, device=mps), torch.tensor([i], device=mps)
            torch.testing.assert_close(compiled(cache, x, at), function(twin, x, at))
    torch.testing.assert_close(cache, twin)
    assert replay_counts() == [[7]]


def test_parameters_that_move_are_captured_again(mps):
    net = net_of(mps).eval()
    compiled = replayed(net)
    x = torch.randn(8, 16, device=mps)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        net[0].weight.data = torch.randn(32, 16, device=mps)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), net(x))
        assert replay_counts() == [[3, 2]]
        assert [len(capture.copied) for capture in functions[0].captures] == [2, 1]  # the input; the weight, too
        for _ in range(5):
            kept = net[0].weight.data
            net[0].weight.data = torch.randn(32, 16, device=mps)
            torch.testing.assert_close(compiled(x), net(x))
            assert kept.shape == (32, 16)
    assert replay_counts() == [[8, 2]]


def test_inputs_that_are_written_at_ever_new_addresses(mps, monkeypatch):
    warnings = []
    monkeypatch.setattr(cudagraph_utils.cudagraphs_log, "warning", lambda *message: warnings.append(message))
    compiled = replayed(lambda cache: cache.add_(1))
    caches = [torch.zeros(4, device=mps) for _ in range(MAX_CAPTURES + 4)]
    with torch.no_grad():
        for _ in range(2):
            for cache in caches:
                compiled(cache)
    assert [cache.tolist() for cache in caches] == [[2.0] * 4] * len(caches)
    assert len(functions[0].captures) == MAX_CAPTURES
    assert [message[1:] for message in warnings] == [(MAX_CAPTURES,)]


def test_inference_mode_and_no_grad_share_a_capture(mps):
    compiled = replayed(lambda x: x.sin() + 1)
    for mode in (torch.inference_mode, torch.no_grad) * 3:
        with mode():
            x = torch.randn(9, device=mps)
            torch.testing.assert_close(compiled(x), x.sin() + 1)


def test_inside_of_a_graph_of_the_users(mps):
    compiled = replayed(lambda x: x * 2)
    x = torch.ones(3, device=mps)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        graph = torch.accelerator.Graph()
        with graph:
            y = compiled(x) + 1
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [11.0] * 3


def test_a_profile_shows_the_kernels(mps):
    compiled = replayed(lambda x: (x * 2).sin())
    x = torch.ones(300, device=mps)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        with torch_anymps.profile() as profile:
            compiled(x)
    assert "sin" in profile.table()
    assert replay_counts() == [[2]]


def test_a_capture_for_each_size(mps):
    compiled = replayed(lambda x: x.relu().sum(0), dynamic=True)
    with torch.no_grad():
        for _ in range(4):
            for n in (3, 4, 5):
                x = torch.randn(n, 6, device=mps)
                torch.testing.assert_close(compiled(x), x.relu().sum(0))
    assert replay_counts() == [[3, 3, 3]]


def test_expanded_inputs(mps):
    compiled = replayed(lambda x: x + 1)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(5, 1, device=mps).expand(5, 7)
            torch.testing.assert_close(compiled(x), x + 1)
    assert replay_counts() == [[3]]


def test_outputs_that_are_inputs(mps):
    compiled = replayed(lambda x, y: (x, y * 2, x.view(-1)))
    with torch.no_grad():
        for _ in range(4):
            x, y = torch.randn(2, 3, device=mps), torch.randn(3, device=mps)
            same, doubled, view = compiled(x, y)
            torch.testing.assert_close((same, doubled, view), (x, y * 2, x.view(-1)))


def test_what_cannot_be_captured_runs_as_it_is(mps):
    @torch.library.custom_op("anymps_test::mean_on_host", mutates_args=())
    def mean_on_host(x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, x.mean().item())

    @mean_on_host.register_fake
    def _(x):
        return torch.empty_like(x)

    compiled = replayed(lambda x: mean_on_host(x * 2))
    skipped = counters["inductor"]["cudagraph_skips"]
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(50, device=mps)
            torch.testing.assert_close(compiled(x), torch.full_like(x, (x * 2).mean().item()))
    assert replay_counts() == [[]]
    assert counters["inductor"]["cudagraph_skips"] == skipped + 1


def test_graphs_all_on_mps_are_accepted_and_others_are_not(mps):
    from torch._inductor import config
    from torch._inductor.cudagraph_utils import check_multiple_devices_or_any_cpu_nodes as check

    node = torch.fx.Graph().placeholder("x")
    with config.patch(cudagraph_policy=ReplayPolicy(), graph_partition=False):
        assert check({torch.device("mps", 0): node}) is None
        assert check({torch.device("mps", 0): node, torch.device("meta"): node}) is None
        assert "cpu" in check({torch.device("mps", 0): node, torch.device("cpu"): node})
    with config.patch(cudagraph_policy=None):
        assert check({torch.device("mps", 0): node}) is not None


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_torch_profiler_shows_compiled_kernels(mps, mode):
    compiled = torch.compile(lambda x: (x.sin() + 1).exp().sum(0), mode=mode)
    x = torch.randn(64, 32, device=mps)
    for _ in range(4):
        expected = compiled(x).clone()
    with torch.profiler.profile() as profile:
        torch.testing.assert_close(compiled(x), expected)
    kernels = {e.key: e for e in profile.key_averages() if e.device_type.name == "CUDA"}
    assert [e.count for name, e in kernels.items() if "sin" in name and "exp" in name] == [1], kernels
    assert any(e.key == "torch.accelerator.Graph.replay" for e in profile.key_averages()) == (mode != "default")


def test_inputs_are_free_where_a_graph_is_captured(mps):
    held, given = [], []

    def model(inputs):
        held.append(given[0]() is not None)
        (x,) = inputs
        inputs.clear()
        return [x + 1]

    function = ReplayPolicy().cudagraphify(model, [torch.empty(4, device=mps)], (), is_backward=False)
    for value in (1.0, 2.0, 3.0):
        inputs = [torch.full((4,), value, device=mps)]
        given[:] = [weakref.ref(inputs[0])]
        (result,) = function(inputs)
        assert result.tolist() == [value + 1] * 4
    assert held == [True, False]  # as it is, captured, replayed
