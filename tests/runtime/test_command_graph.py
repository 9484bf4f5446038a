"""torch.accelerator.Graph: what is captured once does, at every replay, what the same calls do eagerly."""

import gc
import threading

import pytest
import torch
import torch.nn.functional as F


def captured(work, pool=None):
    """A graph of work() and what it returned; work runs once before, as users are told to do."""
    work()
    graph = torch.accelerator.Graph(pool=pool)
    with graph:
        result = work()
    return graph, result


def test_replay_computes_from_what_its_inputs_hold(mps):
    x = torch.randn(33, 65, device=mps)
    weight = torch.randn(65, 17, device=mps)

    def work():
        return F.gelu(x @ weight).softmax(1).sum(0, keepdim=True) + x.t()[:1, :1]

    graph, y = captured(work)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(y, work(), rtol=0, atol=0)


def test_capture_runs_nothing(mps):
    x = torch.zeros(8, device=mps)
    graph = torch.accelerator.Graph()
    with graph:
        x += 1
    assert x.sum().item() == 0
    graph.replay()
    assert x.sum().item() == 8


def test_many_replays_may_be_pending_between_eager_work(mps):
    x = torch.zeros(1000, device=mps, dtype=torch.int32)
    graph = torch.accelerator.Graph()
    with graph:
        x.mul_(3).add_(1)
    expected = 0
    for i in range(100):
        graph.replay()
        x.bitwise_and_(0xFFFF)
        x += i
        expected = ((3 * expected + 1) & 0xFFFF) + i
    assert x.unique().tolist() == [expected]


def test_several_graphs_in_any_order(mps):
    x = torch.ones(5, device=mps)
    double, _ = captured(lambda: x.mul_(2))
    increment, _ = captured(lambda: x.add_(1))
    x.fill_(1)
    for graph in (double, increment, increment, double, double, increment):
        graph.replay()
    assert x.tolist() == [17.0] * 5


def test_constants_of_the_host_stay_in_the_graph(mps):
    table = torch.arange(1000)
    graph = torch.accelerator.Graph()
    with graph:
        y = table.to(mps) * torch.tensor(3, device=mps)
    table.zero_()
    for _ in range(2):
        graph.replay()
        assert torch.equal(y.cpu(), torch.arange(1000) * 3)
        y.zero_()


def test_large_arguments_and_words_that_begin_as_zeros(mps):
    """torch.cat of many tensors takes arguments from memory; float32 convolutions count in zeroed words."""
    parts = [torch.randn(3, i + 1, device=mps) for i in range(40)]
    x, w = torch.randn(2, 8, 20, 20, device=mps), torch.randn(16, 8, 3, 3, device=mps)
    graph, (joined, y) = captured(lambda: (torch.cat(parts, 1), F.conv2d(x, w, padding=1)))
    for scale in (1.0, 100.0):
        x.normal_().mul_(scale)
        parts[7].normal_()
        graph.replay()
        torch.testing.assert_close(joined, torch.cat(parts, 1), rtol=0, atol=0)
        torch.testing.assert_close(y, F.conv2d(x, w, padding=1), rtol=0, atol=0)


def test_work_of_other_threads_is_not_captured(mps):
    x, other = torch.zeros(100, device=mps), torch.zeros(100, device=mps)
    begun, done = threading.Event(), threading.Event()
    seen = []

    def eager():
        begun.wait(300)
        for _ in range(50):
            other.add_(torch.ones(100, device=mps))
        seen.append(other.sum().item())  # it may even synchronize
        done.set()

    thread = threading.Thread(target=eager)
    thread.start()
    graph = torch.accelerator.Graph()
    with graph:
        x += 1
        begun.set()
        assert done.wait(300)
        x += 1
    thread.join()
    assert seen == [5000.0]
    graph.replay()
    assert x.tolist() == [2.0] * 100
    assert other.tolist() == [50.0] * 100


def test_threads_capture_graphs_of_their_own_at_the_same_time(mps):
    meet = threading.Barrier(2, timeout=300)
    results = {}

    def capture(number):
        x = torch.zeros(50, device=mps)
        meet.wait()
        graph = torch.accelerator.Graph()
        graph.capture_begin()
        for _ in range(20):
            x += number
            meet.wait()
        graph.capture_end()
        graph.replay()
        results[number] = x.tolist()

    threads = [threading.Thread(target=capture, args=(n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {1: [20.0] * 50, 2: [40.0] * 50}


def test_a_whole_training_step_backward_included(mps):
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).to(mps)
    twin = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).to(mps)
    x, y = torch.randn(8, 16, device=mps), torch.randint(0, 4, (8,), device=mps)

    def step(net):
        loss = F.cross_entropy(net(x), y)
        gradients = torch.autograd.grad(loss, list(net.parameters()))  # runs in a thread of autograd
        with torch.no_grad():
            torch._foreach_sub_(list(net.parameters()), gradients, alpha=0.1)
        return loss

    graph, loss = captured(lambda: step(net))
    twin.load_state_dict(net.state_dict())
    for _ in range(10):
        graph.replay()
        torch.testing.assert_close(loss, step(twin), rtol=0, atol=0)
    torch.testing.assert_close(net.state_dict(), twin.state_dict(), rtol=0, atol=0)


def test_other_tensors_never_get_the_memory_of_a_graph(mps):
    x = torch.randn(300, 1000, device=mps)
    graph, y = captured(lambda: ((x + 1) * 2 - x).exp().sum(1))  # three tensors are freed on the way
    expected = y.clone()
    torch.mps.empty_cache()
    others = [torch.full((n,), float("nan"), device=mps) for n in (300, 1000, 300 * 1000, 2 * 300 * 1000) * 3]
    graph.replay()
    expected = ((x + 1) * 2 - x).exp().sum(1)
    graph.replay()
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    assert all(t.isnan().all().item() for t in others)


def test_graphs_share_a_pool(mps):
    x = torch.randn(1 << 20, device=mps)
    first, y = captured(lambda: (x * 2).sin())
    before = torch.accelerator.memory_reserved()
    second, z = captured(lambda: (y * 3).cos(), pool=first.pool())
    assert second.pool() == first.pool()
    # x * 2 is free in the pool; only the eager run before the capture needed memory of its own, which is cached
    assert torch.accelerator.memory_reserved() - before <= 2 * x.nbytes
    for _ in range(2):
        x.normal_()
        first.replay()
        second.replay()
        torch.testing.assert_close(z, ((x * 2).sin() * 3).cos(), rtol=0, atol=0)


def test_memory_is_everybodys_when_the_graph_is_gone(mps):
    x = torch.randn(4 << 20, device=mps)
    reserved = []
    for _ in range(5):
        graph, y = captured(lambda: (x * 2 + 1).sin() * 3)
        for _ in range(20):
            graph.replay()
        expected = (x * 2 + 1).sin() * 3
        del graph  # replays are pending; y stays valid
        gc.collect()
        torch.testing.assert_close(y, expected, rtol=0, atol=0)
        del y, expected
        torch.mps.empty_cache()
        reserved.append(torch.accelerator.memory_reserved())
    assert reserved[-1] == reserved[0]


def test_reset_and_capture_again(mps):
    x = torch.zeros(3, device=mps)
    graph = torch.accelerator.Graph()
    with pytest.raises(RuntimeError, match="has not been captured"):
        graph.replay()
    with graph:
        x += 1
    with pytest.raises(RuntimeError, match="captured already"):
        graph.capture_begin()
    graph.reset()
    with graph:
        x += 10
    graph.replay()
    assert x.tolist() == [10.0] * 3
    with pytest.raises(RuntimeError, match="does not capture"):
        graph.capture_end()


DRAWS = {
    "rand": lambda d: torch.rand(1001, device=d),
    "randn": lambda d: torch.randn(77, device=d),
    "randint": lambda d: torch.randint(0, 1 << 40, (500,), device=d),
    "randperm": lambda d: torch.randperm(300, device=d),
    "bernoulli": lambda d: torch.bernoulli(torch.full((999,), 0.3, device=d)),
    "dropout": lambda d: F.dropout(torch.ones(2000, device=d), 0.5),
    "exponential": lambda d: torch.empty(100, device=d).exponential_(),
    "gamma": lambda d: torch._standard_gamma(torch.full((100,), 2.0, device=d)),
    "attention": lambda d: F.scaled_dot_product_attention(*torch.ones(3, 1, 2, 40, 16, device=d), dropout_p=0.5),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_random_numbers_go_on_as_in_eager_code(draw, mps):
    graph, result = captured(lambda: [draw(mps), draw(mps)])
    torch.manual_seed(7)
    eager = [[draw(mps), draw(mps)] for _ in range(3)] + [torch.rand(5, device=mps)]
    torch.manual_seed(7)
    for expected in eager[:3]:
        graph.replay()
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
    torch.testing.assert_close(torch.rand(5, device=mps), eager[3], rtol=0, atol=0)
    assert not torch.equal(eager[0][0], eager[1][0])


def test_pending_replays_have_numbers_of_their_own(mps):
    total = torch.zeros(64, 1000, device=mps)
    row = torch.zeros(1, dtype=torch.int64, device=mps)

    def work():
        total.index_copy_(0, row, torch.rand(1, 1000, device=mps))
        row.add_(1)

    graph, _ = captured(work)
    row.zero_()
    torch.manual_seed(3)
    for _ in range(64):
        graph.replay()
    torch.manual_seed(3)
    torch.testing.assert_close(total, torch.cat([torch.rand(1, 1000, device=mps) for _ in range(64)]), rtol=0, atol=0)


def test_two_generators(mps):
    own = torch.Generator(mps).manual_seed(1)
    graph, (a, b) = captured(lambda: (torch.rand(9, device=mps, generator=own), torch.rand(9, device=mps)))
    own.manual_seed(5)
    torch.manual_seed(6)
    expected = torch.rand(9, device=mps, generator=own), torch.rand(9, device=mps)
    own.manual_seed(5)
    torch.manual_seed(6)
    graph.replay()
    torch.testing.assert_close((a, b), expected, rtol=0, atol=0)


def test_gradient_of_dropped_attention_uses_the_replays_numbers(mps):
    q = torch.randn(1, 2, 33, 16, device=mps, requires_grad=True)

    def work():
        out = F.scaled_dot_product_attention(q, q, q, dropout_p=0.3)
        return out, torch.autograd.grad(out.sum(), q)[0]

    graph, (out, gradient) = captured(work)
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = work()
        torch.manual_seed(seed)
        graph.replay()
        torch.testing.assert_close((out, gradient), expected, rtol=0, atol=0)


FORBIDDEN = {
    "item": lambda x: x.sum().item(),
    "cpu": lambda x: x.cpu(),
    "synchronize": lambda x: torch.mps.synchronize(),
    "nonzero": lambda x: x.nonzero(),
    "event": lambda x: torch.mps.Event(enable_timing=True).record(),
    "upload": lambda x: torch.zeros(1 << 20).to(x.device),
    "host operator": lambda x: torch.linalg.eigh(x),
    "seed": lambda x: torch.mps.manual_seed(1),
    "out of memory": lambda x: torch.empty(1 << 50, device=x.device),
}


@pytest.mark.parametrize("call", FORBIDDEN.values(), ids=FORBIDDEN)
def test_what_cannot_be_captured_raises_and_everything_goes_on(call, mps):
    x = torch.ones(4, 4, device=mps)
    graph = torch.accelerator.Graph()
    with graph:
        x += 1
        with pytest.raises(RuntimeError) as error:
            call(x)
        x += 1
    words = ("permitted while a graph is captured", "out of memory", "Invalid buffer size")
    assert any(w in str(error.value) for w in words), str(error.value)
    graph.replay()
    assert x.sum().item() == 48

    with pytest.raises(RuntimeError), torch.accelerator.Graph():
        call(x)
    assert (x * 2).sum().item() == 96


def test_nested_captures_raise(mps):
    x = torch.ones(4, device=mps)
    ready, _ = captured(lambda: x.mul_(1))
    with torch.accelerator.Graph():
        with pytest.raises(RuntimeError, match="captures a graph already"):
            torch.accelerator.Graph().capture_begin()
        with pytest.raises(RuntimeError, match="replay"):
            ready.replay()


def test_kernel_errors_of_a_replay_raise_at_the_next_synchronization(mps):
    index = torch.zeros(3, dtype=torch.int64, device=mps)
    x = torch.arange(5.0, device=mps)
    graph, y = captured(lambda: x[index] + 1)
    graph.replay()
    torch.mps.synchronize()
    index.fill_(9)
    graph.replay()
    with pytest.raises(torch.AcceleratorError, match="out of range"):
        torch.mps.synchronize()
    index.fill_(2)
    graph.replay()
    assert y.tolist() == [3.0] * 3


def test_memory_cached_elsewhere_may_be_freed_while_the_graph_names_it(mps):
    """What a graph reads stays where it is, though nobody may have it any more."""
    kept = [torch.ones(8 << 20, device=mps)]
    graph, y = captured(lambda: kept[0].clone() + kept[0])
    kept.clear()
    gc.collect()
    torch.mps.empty_cache()
    graph.replay()
    torch.mps.synchronize()
    assert y.shape == (8 << 20,)


def test_debug_dump_names_the_commands(mps, tmp_path):
    x = torch.ones(4, device=mps)
    graph = torch.accelerator.Graph()
    graph.enable_debug_mode()
    with graph:
        x.mul_(2).exp_()
    graph.debug_dump(str(tmp_path / "graph.dot"))
    text = (tmp_path / "graph.dot").read_text()
    assert "mul" in text and "exp" in text and "n0 -> n1" in text
