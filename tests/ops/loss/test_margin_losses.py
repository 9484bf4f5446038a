"""multi_margin_loss, multilabel_margin_loss: reductions, weights, shapes, targets out of range."""

import pytest
import torch
import torch.nn.functional as F
from both_devices import agree, layouts

REDUCTIONS = ("none", "mean", "sum")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_multi_margin(reduction, p, weighted, mps, no_fallback):
    weight = torch.rand(9) if weighted else None
    target = torch.randint(0, 9, (6,))

    def call(x, t, w=None):
        return F.multi_margin_loss(x, t, p=p, margin=0.7, weight=w, reduction=reduction)

    for x in layouts((6, 9)):
        agree(lambda x, t: call(x, t, None if weight is None else weight.to(x.device)), x, target)
    agree(call, torch.randn(9), torch.tensor(3))
    agree(call, torch.randn(9), torch.tensor([3]))
    if reduction == "none":  # else the CPU's result is not initialised
        agree(call, torch.randn(0, 9), torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin(reduction, mps, no_fallback):
    target = torch.full((6, 9), -1)
    for row, labels in enumerate([[], [3], [0, 8, 1], [2, 2, 5], list(range(9)), [4, -1, 7]]):
        target[row, : len(labels)] = torch.tensor(labels, dtype=torch.int64)

    def call(x, t):
        return F.multilabel_margin_loss(x, t, reduction=reduction)

    for x in layouts((6, 9)):
        agree(call, x, target)
    agree(call, torch.randn(6, 9), target.t().contiguous().t())
    agree(call, torch.randn(9), target[3])
    agree(call, torch.tensor(3.0), torch.tensor(0))


def test_not_a_number(mps):
    x = torch.randn(3, 5)
    x[1, 2] = float("nan")
    agree(lambda x: F.multi_margin_loss(x, torch.tensor([0, 2, 4]).to(x.device), reduction="none"), x, backward=False)
    target = torch.tensor([[0, -1, 0, 0, 0], [2, 1, -1, 0, 0], [3, 4, -1, 0, 0]])
    agree(lambda x: F.multilabel_margin_loss(x, target.to(x.device), reduction="none"), x, backward=False)


@pytest.mark.parametrize("loss", [F.multi_margin_loss, F.multilabel_margin_loss])
def test_wrong_targets(loss, mps):
    shape = (2,) if loss is F.multi_margin_loss else (2, 3)
    x = torch.ones(2, 3, device=mps)
    with pytest.raises(RuntimeError, match="out of range"):
        loss(x, torch.full(shape, 3, device=mps))
    with pytest.raises(RuntimeError, match="expected scalar type Long but found Int"):
        loss(x, torch.zeros(shape, dtype=torch.int32, device=mps))
