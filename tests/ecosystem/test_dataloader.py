"""Batches that forked workers prepare reach the device; the workers never touch it."""

import warnings

import pytest
import torch

pytestmark = pytest.mark.usefixtures("mps")


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index * index


@pytest.mark.parametrize("pin_memory", [False, True])
def test_two_forked_workers(pin_memory):
    torch.ones(1, device="mps").sum().item()  # the device is in use before the fork
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=8, num_workers=2, pin_memory=pin_memory, multiprocessing_context="fork"
    )
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it does not pin memory for MPS
        for _ in range(2):  # epochs: the workers are forked again
            for x, square in loader:
                x, square = x.to("mps", non_blocking=True), square.to("mps", non_blocking=True)
                assert torch.equal((x[:, 0] * x[:, 1]).long().cpu(), square.cpu())
                seen += square.sqrt().long().tolist()
    assert seen == [*range(40)] * 2


def test_a_worker_that_uses_the_device_gets_an_error():
    class Wrong(Squares):
        def __getitem__(self, index):
            return torch.ones(1, device="mps")

    torch.ones(1, device="mps").sum().item()
    loader = torch.utils.data.DataLoader(Wrong(), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match="Cannot re-initialize MPS in forked subprocess"):
        next(iter(loader))
    assert torch.ones(2, device="mps").sum().item() == 2


def test_pinned_tensors_copy():
    x = torch.randn(1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pinned = x.pin_memory()
    on_device = pinned.to("mps", non_blocking=True)
    pinned.zero_()  # the source may be overwritten at once
    assert torch.equal(on_device.cpu(), x)
