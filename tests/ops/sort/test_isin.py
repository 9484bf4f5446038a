"""torch.isin against the CPU's answers."""

import pytest
import torch

pytestmark = pytest.mark.usefixtures("mps", "no_fallback")
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def check(elements, members, **options):
    on_device = [x.to("mps") if isinstance(x, torch.Tensor) else x for x in (elements, members)]
    assert torch.equal(torch.isin(*on_device, **options).cpu(), torch.isin(elements, members, **options))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("members", [0, 1, 16, 17, 1000])
@pytest.mark.parametrize("invert", [False, True])
def test_tensors(dtype, members, invert):
    elements = torch.randint(0, 100, (70, 90)).to(dtype)
    check(elements, torch.randint(0, 90, (members,)).to(dtype), invert=invert)


def test_scalars():
    x = torch.tensor([[1, 2], [3, 1]])
    for invert in (False, True):
        check(x, 1, invert=invert)
        check(1, x, invert=invert)
        check(1.5, x, invert=invert)
        check(3.0, x.half(), invert=invert)


def test_special_values_and_mixed_types():
    nan, inf = float("nan"), float("inf")
    special = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0])
    check(special, torch.tensor([nan, 0.0, inf]))
    check(special, torch.cat([special, torch.arange(40.0)]))
    check(torch.arange(5), torch.tensor([1.0, 2.5]))
    check(torch.tensor([2**40, 2**40 + 1]), torch.tensor([2**40 + 1]))


def test_layouts():
    x = torch.randint(0, 9, (6, 8))
    check(x.t(), x[1:3, ::2])
    check(x[:, 3:], x[0])
    check(torch.tensor(3), torch.tensor(3))
    check(torch.empty(0, dtype=torch.long), x)
    out = torch.empty(8, 6, dtype=torch.bool, device="mps").t()
    torch.isin(x.to("mps"), torch.tensor([1, 2], device="mps"), out=out)
    assert torch.equal(out.cpu(), torch.isin(x, torch.tensor([1, 2])))


def test_bad_types_raise_as_on_the_cpu():
    for dtype in (torch.bool, torch.complex64):
        x = torch.ones(2, dtype=dtype)
        messages = []
        for device in ("cpu", "mps"):
            with pytest.raises(RuntimeError) as caught:
                torch.isin(x.to(device), x.to(device))
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
