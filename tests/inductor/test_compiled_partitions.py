"""torch.compile(mode="reduce-overhead"): what must not be replayed runs at every call, and the rest is replayed."""

import pytest
import torch
from test_compiled_replay import clean, count_replays, replay_counts, replayed

__all__ = ["clean", "count_replays"]
calls: list[torch.Tensor] = []


@torch.library.custom_op("anymps_test::times_calls", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def times_calls(x: torch.Tensor) -> torch.Tensor:
    calls.append(x)
    return x * len(calls)


@times_calls.register_fake
def _(x):
    return torch.empty_like(x)


def test_unsafe_operators_run_at_every_call(mps):
    compiled = replayed(lambda x: (times_calls(x.sin()) + 1, x * 3))
    calls.clear()
    with torch.no_grad():
        for n in range(1, 6):
            x = torch.randn(9, device=mps)
            torch.testing.assert_close(compiled(x), (x.sin() * n + 1, x * 3))
    assert len(calls) == 5
    assert replay_counts() == [[4], [4]]


def test_a_graph_of_unsafe_operators_alone_is_not_replayed(mps):
    compiled = replayed(times_calls)
    calls.clear()
    x = torch.randn(9, device=mps)
    with torch.no_grad():
        for n in range(1, 4):
            torch.testing.assert_close(compiled(x), x * n)


def test_gradients_of_graphs_with_unsafe_operators(mps):
    compiled = replayed(lambda x, w: (times_calls((x @ w).detach()) * w).relu().sum())
    calls.clear()
    for n in range(1, 5):
        x, w = (torch.randn(4, 4, device=mps, requires_grad=True) for _ in range(2))
        (gradient,) = torch.autograd.grad(compiled(x, w), w)
        factor = (x @ w).detach() * n
        torch.testing.assert_close(gradient, torch.where(factor * w > 0, factor, 0))


def test_operators_of_the_cpu_stand_between_replays(mps):
    compiled = replayed(lambda x: (x * 2).cpu().sin().to(x.device) + 1)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(9, device=mps)
            torch.testing.assert_close(compiled(x), (x * 2).sin() + 1)
    assert replay_counts() == [[3], [3]]


def test_branches_stand_between_replays(mps):
    def function(x):
        y = x.sin()
        return torch.cond(y.sum() > 0, lambda y: y + 1, lambda y: y - 1, (y,)) * 2

    compiled = replayed(function)
    with torch.no_grad():
        for n in range(4):
            x = torch.full((5,), (-1.0) ** n, device=mps)
            torch.testing.assert_close(compiled(x), function(x))
    assert replay_counts() == [[3], []]  # a branch's results are one tuple, which is not captured


@pytest.mark.parametrize("skipped", [True, False])
def test_graphs_of_dynamic_shapes_are_skipped_where_asked(mps, skipped):
    with torch._inductor.config.patch("triton.cudagraph_skip_dynamic_graphs", skipped):
        compiled = replayed(lambda x: x.sin(), dynamic=True)
        with torch.no_grad():
            for _ in range(3):
                x = torch.randn(9, device=mps)
                torch.testing.assert_close(compiled(x), x.sin())
    assert replay_counts() == ([] if skipped else [[2]])
