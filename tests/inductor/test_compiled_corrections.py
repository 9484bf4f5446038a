"""What PyTorch's own lowerings and decompositions compute wrong, on every device, and torch_anymps corrects."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled_agrees

pytestmark = pytest.mark.usefixtures("slang")


def test_gradients_of_averages_over_parts_of_windows(mps):
    def function(x):
        return F.avg_pool2d(x[0], (2, 3), (3, 2), (1, 0), ceil_mode=True), F.avg_pool3d(x, (2, 1, 3), 2, ceil_mode=True)

    compiled_agrees(function, torch.randn(1, 2, 3, 7, 5, requires_grad=True), backward=True)


def test_samples_of_fractional_pooling_are_those_of_their_dimension(mps):
    def function(x, samples):
        return F.fractional_max_pool3d(x, 2, output_size=(3, 4, 2), _random_samples=samples, return_indices=True)

    x = torch.randn(2, 3, 7, 9, 5, requires_grad=True)
    compiled_agrees(function, x, torch.rand(2, 3, 3), backward=True)


@pytest.mark.parametrize("training", (False, True))
def test_labels_end_before_the_first_negative_one(mps, training):
    def function(x, labels):
        return F.multilabel_margin_loss(x, labels, reduction="none"), F.multilabel_margin_loss(x[0], labels[0])

    labels = torch.tensor([[3, 0, -1, 1, 2], [1, -1, 0, 0, 0], [-1, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
    with torch.inference_mode(not training):
        compiled_agrees(function, torch.randn(4, 5, requires_grad=training), labels, backward=training)
