"""Checkpoints in compiled graphs: what is recomputed draws the random numbers that the forward drew."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def dropped(x):
    return F.dropout(x, 0.5).sin()


def masked(x):
    return (torch.rand_like(x) * x).sin()


def drawn(x):
    return (x * torch.randint(5, x.shape, device=x.device)).sin()


def gradient_agrees(x, y):
    """Of y = sum(sin(n * x)) by elements: n from the results, exactly zero where n is."""
    (grad,) = torch.autograd.grad(y.sum(), x)
    # sin(n x) has the derivative n cos(n x); n x is in the first quadrant.
    n = y.detach().asin() / x.detach()
    torch.testing.assert_close(grad, n * (n * x.detach()).cos(), rtol=1e-3, atol=1e-3)
    return n


def chosen(x):
    return (torch.bernoulli(x.detach().clamp(0.4, 0.6)) * x).sin()  # an operator that is called


@pytest.mark.parametrize(
    ("inner", "mode", "reentrant"),
    [
        (dropped, "default", True),
        (drawn, "default", False),
        (chosen, "default", False),
        (chosen, "reduce-overhead", False),
        (dropped, "reduce-overhead", False),
        (masked, "reduce-overhead", False),
        (dropped, "fallback_random", False),
        (masked, "fallback_random", True),
    ],
)
def test_masks_are_drawn_again(inner, mode, reentrant, mps):
    options = {"fallback_random": True} if mode == "fallback_random" else None
    compiled = torch.compile(
        lambda x: checkpoint(inner, x, use_reentrant=reentrant),
        fullgraph=True,
        **({"options": options} if options else {"mode": mode}),
    )
    masks = []
    for _ in range(4):
        x = (torch.rand(40, 8, device=mps) * 0.2 + 0.1).requires_grad_()
        masks.append(gradient_agrees(x, compiled(x)))
    assert all(not torch.allclose(a, b, atol=1e-2) for a, b in zip(masks, masks[1:]))


def test_forwards_before_their_backwards(mps):
    compiled = torch.compile(lambda x: checkpoint(masked, x, use_reentrant=False), mode="reduce-overhead")
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        xs = [(torch.rand(40, 8, device=mps) * 0.2 + 0.1).requires_grad_() for _ in order]
        ys = [compiled(x) for x in xs]
        for i in order:
            gradient_agrees(xs[i], ys[i])


def test_generators_share_sequences(mps):
    generator, other = torch.Generator(mps).manual_seed(5), torch.Generator(mps).manual_seed(6)
    expected = torch.rand(4, device=mps, generator=torch.Generator(mps).manual_seed(6))
    before = generator.graphsafe_get_state()
    generator.graphsafe_set_state(other)
    assert torch.equal(torch.rand(4, device=mps, generator=generator), expected)
    assert not torch.equal(torch.rand(4, device=mps, generator=other), expected)
    generator.graphsafe_set_state(before)
    assert generator.initial_seed() == 5
    with pytest.raises(RuntimeError, match="Expected a generator of mps"):
        generator.graphsafe_set_state(torch.Generator())


def test_graphs_advance_a_shared_sequence(mps):
    generator, other = torch.Generator(mps).manual_seed(5), torch.Generator(mps).manual_seed(6)
    graph, x = torch.accelerator.Graph(), torch.empty(4, device=mps)
    own = generator.graphsafe_get_state()
    graph.capture_begin()
    generator.graphsafe_set_state(other)
    x.uniform_(generator=generator)
    generator.graphsafe_set_state(own)
    graph.capture_end()
    for _ in range(3):
        expected = torch.rand(4, device=mps, generator=other.clone_state())
        graph.replay()
        assert torch.equal(x, expected)
    assert torch.equal(
        torch.rand(4, device=mps, generator=generator),
        torch.rand(4, device=mps, generator=torch.Generator(mps).manual_seed(5)),
    )
