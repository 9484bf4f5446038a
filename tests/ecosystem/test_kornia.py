"""kornia: filters, geometry, colours, morphology and features, with their gradients."""

import pytest
import torch

from . import agree, library

kornia = library("kornia")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback", "all_bits_of_f32")


def rotated(x):
    turn = kornia.geometry.get_rotation_matrix2d(
        torch.tensor([[9.0, 8.0]], device=x.device), torch.tensor([30.0], device=x.device), x.new_ones(1, 2)
    )
    return kornia.geometry.warp_affine(x, turn.expand(x.shape[0], -1, -1), (17, 19))


def homography(x):
    corners = torch.tensor([[[0.0, 0], [18, 0], [18, 16], [0, 16]]], device=x.device)
    moved = corners + torch.tensor([[[1.0, 2], [-2, 1], [0, -3], [2, 0]]], device=x.device)
    matrix = kornia.geometry.get_perspective_transform(corners, moved)
    return kornia.geometry.warp_perspective(x, matrix.expand(x.shape[0], -1, -1), (17, 19))


CALLS = {
    "gaussian": lambda x: kornia.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5)),
    "sobel": lambda x: kornia.filters.sobel(x),
    "canny": lambda x: kornia.filters.canny(x)[0],
    "median": lambda x: kornia.filters.median_blur(x, (3, 3)),
    "bilateral": lambda x: kornia.filters.bilateral_blur(x, (3, 3), 0.1, (1.5, 1.5)),
    "rotate": rotated,
    "perspective": homography,
    "elastic": lambda x: kornia.geometry.transform.elastic_transform2d(x, torch.sin(x[:, :2]), sigma=(4.0, 4.0)),
    "lab": lambda x: kornia.color.rgb_to_lab(x),
    "hsv": lambda x: kornia.color.rgb_to_hsv(x),
    "equalize": lambda x: kornia.enhance.equalize_clahe(x, grid_size=(2, 2)),
    "dilation": lambda x: kornia.morphology.dilation(x, torch.ones(3, 3, device=x.device)),
    "harris": lambda x: kornia.feature.harris_response(x),
    "ssim": lambda x: kornia.metrics.ssim(x, x.flip(-1), 5),
}


@pytest.mark.parametrize("name", CALLS)
def test_agrees(name):
    image = torch.rand(2, 3, 17, 19)

    def run(device):
        x = image.to(device).requires_grad_()
        result = CALLS[name](x)
        gradient = torch.autograd.grad(result.sum(), x)[0] if result.requires_grad else None
        return [result.detach()] + ([] if gradient is None else [gradient])

    agree(run)


def test_augmentations():
    augment = kornia.augmentation
    chain = augment.AugmentationSequential(
        augment.RandomAffine(20.0, p=1.0), augment.ColorJitter(0.2, 0.2, 0.2, 0.1, p=1.0), augment.RandomErasing(p=1.0)
    )
    image = torch.rand(2, 3, 17, 19)
    chain(image)
    drawn = chain._params
    agree(lambda device: chain.to(device)(image.to(device), params=drawn))
