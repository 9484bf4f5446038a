"""ctc_loss: lengths, layouts of targets, infinite losses, gradients."""

import pytest
import torch
import torch.nn.functional as F
from both_devices import agree

TARGETS = torch.tensor([[1, 2, 2, 3], [4, 4, 4, 1], [3, 1, 2, 5], [1, 5, 3, 2]])
LENGTHS = [4, 3, 0, 2]


def log_probs(time=11, batch=4, classes=6):
    return torch.randn(time, batch, classes).log_softmax(2)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("index_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("blank", [0, 5])
def test_matrix_of_targets(reduction, index_type, blank, mps, no_fallback):
    targets = TARGETS.masked_fill(TARGETS.eq(blank), 0)
    agree(
        lambda p, t: F.ctc_loss(p, t, [11, 9, 11, 7], LENGTHS, blank=blank, reduction=reduction),
        log_probs(),
        targets.to(index_type),
        tolerance=1e-4,
    )


def test_targets_in_a_row(mps, no_fallback):
    row = torch.cat([t[:n] for t, n in zip(TARGETS, LENGTHS)])
    lengths = torch.tensor([11, 9, 11, 7]), torch.tensor(LENGTHS)
    agree(lambda p, t: F.ctc_loss(p, t, *lengths, reduction="none"), log_probs(), row, tolerance=1e-4)
    agree(lambda p, t, a, b: F.ctc_loss(p, t, a, b, reduction="none"), log_probs(), row, *lengths, tolerance=1e-4)
    agree(
        lambda p, t: F.ctc_loss(p, t, *lengths, reduction="none"),
        log_probs(),
        row.repeat(2, 1).t()[:, 0],
        tolerance=1e-4,
    )


def test_layouts(mps):
    batch_first = torch.randn(4, 11, 6).log_softmax(2).transpose(0, 1)
    agree(lambda p, t: F.ctc_loss(p, t, [11] * 4, LENGTHS), batch_first, TARGETS, tolerance=1e-4)
    agree(lambda p, t: F.ctc_loss(p, t, [11] * 4, LENGTHS), log_probs(), TARGETS.t().contiguous().t(), tolerance=1e-4)
    agree(lambda p, t: F.ctc_loss(p, t, [11], [3]), torch.randn(11, 6).log_softmax(1), TARGETS[0, :3], tolerance=1e-4)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_impossible_sequences(zero_infinity, mps):
    """Repeated labels need blanks between them: three of them do not fit into four steps."""
    agree(
        lambda p, t: F.ctc_loss(p, t, [4, 0, 0, 11], [3, 0, 2, 4], reduction="none", zero_infinity=zero_infinity),
        log_probs(),
        TARGETS[[1, 0, 2, 3]],
        tolerance=1e-4,
    )


def test_long_sequences(mps):
    agree(
        lambda p, t: F.ctc_loss(p, t, [300, 250], [120, 70]),
        log_probs(300, 2, 40),
        torch.randint(1, 40, (2, 120)),
        tolerance=2e-3,  # 300 steps of sums in logarithms of a few hundred
    )


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_nan_is_not_an_infinite_loss(zero_infinity, mps):
    p = log_probs(8, 3, 6)
    p[:2, 0] = float("nan")
    p[3, 1, 2] = float("nan")
    target = torch.tensor([[1, 2], [2, 3], [3, 1]])
    loss = F.ctc_loss(p.to(mps), target.to(mps), [8] * 3, [2] * 3, reduction="none", zero_infinity=zero_infinity)
    assert loss.isnan().tolist() == [True, True, False]


def test_lengths_of_the_cpu_in_transforms(mps, no_fallback):
    """torch.func hands lengths to the kernel as tensors, from wherever they are; PyTorch's own mean does not."""
    lengths = torch.tensor([11, 9, 11, 7]), torch.tensor(LENGTHS)

    def gradient(p, t):
        return torch.func.grad(lambda q: F.ctc_loss(q, t, *lengths, reduction="sum"))(p)

    agree(gradient, log_probs(), TARGETS, tolerance=1e-4, backward=False)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch._ctc_loss(log_probs().to(mps), TARGETS, *lengths)


def test_wrong_arguments(mps):
    p, t = log_probs().to(mps), TARGETS.to(mps)
    for call, words in [
        (lambda: F.ctc_loss(p, t, [12, 9, 9, 9], LENGTHS), "value at most 11, but got value 12"),
        (lambda: F.ctc_loss(p, t, [11] * 3, LENGTHS), "input_lengths must be of size batch_size"),
        (lambda: F.ctc_loss(p, t, [11] * 4, LENGTHS, blank=6), "blank must be in label range"),
        (lambda: F.ctc_loss(p, t[:, :2], [11] * 4, LENGTHS), "size at least 4 at dimension 1"),
    ]:
        with pytest.raises(RuntimeError, match=words):
            call()
    with pytest.raises(torch.AcceleratorError, match="ctc_loss"):
        F.ctc_loss(p, t + 5, [11] * 4, LENGTHS)
        torch.mps.synchronize()
