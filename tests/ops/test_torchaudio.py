"""Kernels for torchaudio's operators, against plain Python; without torchaudio its schemas are defined here."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

SCHEMAS = [
    "rnnt_loss_forward(Tensor logits, Tensor targets, Tensor logit_lengths, Tensor target_lengths, int blank, "
    "float clamp, bool fused_log_softmax) -> (Tensor, Tensor)",
    "forced_align(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank) "
    "-> (Tensor, Tensor)",
]


@pytest.fixture(scope="module")
def ops():
    library = torch.library.Library("torchaudio", "FRAGMENT")
    for schema in SCHEMAS:
        if not hasattr(torch.ops.torchaudio, schema.split("(")[0]):
            library.define(schema)
    yield torch.ops.torchaudio
    library._destroy()


def ints(values):
    return torch.tensor(values, dtype=torch.int32)


def python_rnnt(log_probs, targets, frames, labels, blank):
    """The cost of one sequence [time, places, classes], differentiable."""
    alpha = {(0, 0): log_probs.new_zeros(())}
    for t, u in itertools.product(range(frames), range(labels + 1)):
        ways = []
        if t > 0:
            ways.append(alpha[t - 1, u] + log_probs[t - 1, u, blank])
        if u > 0:
            ways.append(alpha[t, u - 1] + log_probs[t, u - 1, targets[u - 1]])
        if ways:
            alpha[t, u] = torch.stack(ways).logsumexp(0)
    return -(alpha[frames - 1, labels] + log_probs[frames - 1, labels, blank])


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("blank", [0, 4, 2])
@pytest.mark.parametrize("clamp", [-1.0, 0.05])
def test_rnnt_loss(fused, blank, clamp, ops, mps):
    frames, labels = [5, 3, 1, 4], [3, 0, 2, 1]
    targets = torch.randint(5, (4, 3))
    if blank != 2:  # a label that is the blank is taken for it where a frame follows
        targets[targets == blank] = 3
    x = torch.randn(4, 5, 4, 5)
    x = x if fused else x.log_softmax(-1)
    leaf = x.double().requires_grad_()
    inputs = leaf.log_softmax(-1) if fused else leaf
    if blank == 2:
        targets[targets == blank] = 1
    wanted = torch.stack([python_rnnt(inputs[b], targets[b].tolist(), frames[b], labels[b], blank) for b in range(4)])
    (gradient,) = torch.autograd.grad(wanted.sum(), leaf)
    if clamp > 0:
        gradient = gradient.clamp(-clamp, clamp)
    ours = [t.to(mps) for t in (x, targets.int(), ints(frames), ints(labels))]
    costs, gradients = ops.rnnt_loss_forward(*ours, blank, clamp, fused)
    torch.testing.assert_close(costs.cpu(), wanted.detach().float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients.cpu(), gradient.float(), rtol=1e-5, atol=1e-5)
    costs, gradients = ops.rnnt_loss_forward(ours[0].half(), *ours[1:], blank, clamp, fused)
    assert costs.dtype == gradients.dtype == torch.float16
    torch.testing.assert_close(costs.cpu().float(), wanted.detach().float(), rtol=5e-3, atol=5e-3)
    torch.testing.assert_close(gradients.cpu().float(), gradient.float(), rtol=5e-3, atol=5e-3)


def test_rnnt_loss_of_nan_is_nan(ops, mps):
    x = torch.randn(2, 5, 4, 5)
    x[0, 2, 1] = float("nan")
    arguments = (torch.randint(1, 5, (2, 3)).int(), ints([5, 5]), ints([3, 3]))
    costs, _ = ops.rnnt_loss_forward(*(t.to(mps) for t in (x.log_softmax(-1), *arguments)), 0, -1.0, False)
    assert costs.isnan().tolist() == [True, False]


def test_rnnt_loss_of_long_sequences(ops, mps):
    """All logits alike: every path is as likely, so their number and length give the cost."""
    for frames, labels in ((200, 30), (3, 2100)):
        x = torch.zeros(1, frames, labels + 1, 2, device=mps)
        targets = torch.ones(1, labels, dtype=torch.int32, device=mps)
        costs, gradients = ops.rnnt_loss_forward(
            x, targets, ints([frames]).to(mps), ints([labels]).to(mps), 0, -1.0, True
        )
        paths = math.lgamma(frames + labels) - math.lgamma(frames) - math.lgamma(labels + 1)
        assert costs.item() == pytest.approx((frames + labels) * math.log(2) - paths, rel=1e-4)
        assert gradients.sum().item() == pytest.approx(0.0, abs=1e-2)


def test_rnnt_loss_refuses(ops, mps):
    good = {"logits": torch.zeros(1, 3, 2, 4), "targets": ints([[1]]), "frames": ints([3]), "labels": ints([1])}

    def call(blank=0, **changed):
        values = [t.to(mps) for t in {**good, **changed}.values()]
        return ops.rnnt_loss_forward(*values, blank, -1.0, True)

    for match, changed in {
        "logits must be float32 or float16": {"logits": torch.zeros(1, 3, 2, 4).bfloat16()},
        "targets must be int32 type": {"targets": torch.ones(1, 1)},
        "logits must be 4-D": {"logits": torch.zeros(3, 2, 4)},
        "input length mismatch": {"frames": ints([2])},
        "output length mismatch": {"labels": ints([0])},
        "batch dimension mismatch between logits and targets": {"targets": ints([[1], [1]])},
        "blank must be within": {"blank": 4},
    }.items():
        with pytest.raises(RuntimeError, match=match):
            call(**changed)
    with pytest.raises(torch.AcceleratorError, match="rnnt_loss"):
        call(targets=ints([[9]]))
        torch.mps.synchronize()


def python_align(log_probs, targets, blank):
    """The most likely path among all of them."""
    best = (-math.inf, None)
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        collapsed = [label for label, _ in itertools.groupby(path) if label != blank]
        if collapsed == targets:
            best = max(best, (sum(log_probs[t, c].item() for t, c in enumerate(path)), path))
    return list(best[1])


@pytest.mark.parametrize("targets", [[1], [2, 1], [1, 1], [1, 2, 1], [2, 2, 2], []])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_forced_align(targets, dtype, ops, mps):
    log_probs = torch.randn(1, 6, 3).log_softmax(-1)
    labels = torch.tensor([targets], dtype=dtype).view(1, -1)
    lengths = torch.tensor([6]), torch.tensor([len(targets)])
    path, scores = ops.forced_align(*(t.to(mps) for t in (log_probs, labels, *lengths)), 0)
    assert path.dtype == dtype and path.shape == (1, 6)
    assert path[0].tolist() == python_align(log_probs[0].double(), targets, 0)
    assert torch.equal(scores.cpu(), log_probs)


def test_forced_align_of_long_sequences(ops, mps):
    """Labels in their places, beyond the states that fit in shared memory too."""
    for labels in (40, 1500):
        targets = torch.randint(1, 7, (1, labels))
        path = torch.stack([targets[0], torch.zeros(labels, dtype=torch.int64)], 1).flatten()
        log_probs = torch.full((1, 2 * labels, 7), -9.0)
        log_probs[0, torch.arange(2 * labels), path] = -0.1
        lengths = torch.tensor([2 * labels]), torch.tensor([labels])
        found, _ = ops.forced_align(*(t.to(mps) for t in (log_probs.half(), targets, *lengths)), 0)
        assert torch.equal(found[0].cpu(), path)


def test_forced_align_refuses(ops, mps):
    def call(targets, length=3, count=2, batch=1):
        x = torch.zeros(batch, 3, 4, device=mps)
        lengths = torch.tensor([length], device=mps), torch.tensor([count], device=mps)
        return ops.forced_align(x, torch.tensor([targets], device=mps), *lengths, 0)

    with pytest.raises(RuntimeError, match="targets length is too long for CTC.*number of repeats: 2"):
        call([1, 1, 1], count=3)
    with pytest.raises(RuntimeError, match="input length mismatch"):
        call([1, 2], length=2)
    with pytest.raises(RuntimeError, match="target length mismatch"):
        call([1, 2], count=1)
    with pytest.raises(RuntimeError, match="The batch dimension for log_probs must be 1"):
        call([1, 2], batch=2)
    with pytest.raises(torch.AcceleratorError, match="forced_align"):
        call([1, 9])
        torch.mps.synchronize()
