"""Tensors and modules on mps go through files, pickles and copies, and come back where they should."""

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from both_devices import REAL_DTYPES
from safetensors.torch import load_file, save_file
from torch import nn

pytestmark = pytest.mark.usefixtures("mps")
DTYPES = [*REAL_DTYPES, torch.complex64]


def sample(dtype):
    return (torch.arange(-8, 22).reshape(5, 6) % 7).to(dtype)


def through_a_file(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("location", [None, "mps", "mps:0", "cpu", torch.device("mps"), {"mps": "cpu"}], ids=str)
def test_map_locations(dtype, location):
    x = sample(dtype)
    loaded = through_a_file(x.to("mps"), map_location=location)
    goes_to_cpu = location == "cpu" or isinstance(location, dict)
    assert loaded.device == torch.device("cpu" if goes_to_cpu else "mps:0")
    assert loaded.dtype == dtype and torch.equal(loaded.cpu(), x)


def test_map_location_function():
    loaded = through_a_file(torch.ones(3), map_location=lambda storage, location: storage.mps())
    assert loaded.device.type == "mps" and loaded.sum().item() == 3


def test_checkpoint_of_another_device_says_so():
    buffer = io.BytesIO()
    torch.save(torch.ones(2, device="mps"), buffer)
    buffer.seek(0)
    with pytest.raises((RuntimeError, AssertionError), match=r"(?i)cuda"):
        torch.load(buffer, map_location="cuda")


def test_the_tag_is_mps_and_views_stay_views():
    x = torch.arange(12.0, device="mps").reshape(3, 4)
    row, column, whole = through_a_file((x[1], x[:, 2], x))
    assert row.tolist() == [4.0, 5.0, 6.0, 7.0]
    assert column.stride() == (4,)
    whole.zero_()
    assert row.sum().item() == 0 and column.sum().item() == 0  # one storage, as before


@pytest.mark.parametrize("mmap", [False, True])
def test_file_on_disk(tmp_path, mmap):
    state = nn.Linear(5, 3, device="mps").state_dict()
    torch.save(state, tmp_path / "state.pt")
    for location in ("cpu", "mps"):
        loaded = torch.load(tmp_path / "state.pt", map_location=location, mmap=mmap)
        assert loaded["weight"].device.type == location
        assert torch.equal(loaded["weight"].cpu(), state["weight"].cpu())


def test_training_state_round_trip():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to("mps")
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(16, 4, device="mps")

    def step(model, optimizer):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    step(model, optimizer)
    saved = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, map_location="cpu")
    twin = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to("mps")
    twin.load_state_dict(saved["model"])
    optimizer_of_twin = torch.optim.Adam(twin.parameters())
    optimizer_of_twin.load_state_dict(saved["optimizer"])
    assert [step(twin, optimizer_of_twin) for _ in range(3)] == [step(model, optimizer) for _ in range(3)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pickle_and_deepcopy(dtype):
    x = sample(dtype).to("mps")[1:4, ::2]
    for twin in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), copy.copy(x)):
        assert twin.device == x.device and twin.dtype == dtype
        assert torch.equal(twin.cpu(), x.cpu())


def tied_module(device):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3)).to(device)
    module[1].weight = module[0].weight
    module[1].register_buffer("part", module[0].weight.detach()[1:])
    module[2].running_var = module[2].running_mean[:]
    return module


def with_gradient(device):
    leaf = torch.ones(4, device=device, requires_grad=True)
    leaf.grad = torch.arange(4.0, device=device)
    return leaf


# Of one tensor w: what lies on the same memory, in one object.
SHARED = {
    "views": lambda w: (w, w[1:], w.t(), w.reshape(-1)[::2], w.detach()),
    "the view alone": lambda w: (w[1:], w[:1]),
    "nested": lambda w: {"a": [w, (w[0],)], "b": {"c": w[1]}, "twice": w},
    "parameter": lambda w: (nn.Parameter(w), w[1:]),
    "other dtype": lambda w: (w, w.view(torch.int32)),
    "storages": lambda w: (w, w.untyped_storage(), w.view(-1).untyped_storage()),
    "typed storages": lambda w: (w[1:], w._typed_storage()),
    "conjugate": lambda w: (torch.view_as_complex(w), torch.view_as_complex(w).conj()),
    "module": lambda w: tied_module(w.device),
    "gradient": lambda w: (lambda leaf: (leaf, leaf.grad[1:], leaf.grad))(with_gradient(w.device)),
    "empty": lambda w: (w[:0], w[:, :0], torch.empty(0, device=w.device)),
}


def parts(value):
    """The tensors and storages in a structure, in an order of its own."""
    if isinstance(value, nn.Module):
        return [*value.parameters(), *value.buffers()]
    if isinstance(value, (dict, list, tuple)):
        return [part for v in (value.values() if isinstance(value, dict) else value) for part in parts(v)]
    return [value]


def sharing(value):
    """For every pair of parts whether they lie on one memory, and whether they are one object."""
    storages = [p.untyped_storage() if isinstance(p, torch.Tensor) else p for p in parts(value)]
    found = [(s.data_ptr() if s.nbytes() else 0, p) for s, p in zip(storages, parts(value), strict=True)]
    return [(a[0] == b[0] != 0, a[1] is b[1]) for a in found for b in found]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "file", "file to the CPU", "mmap"])
@pytest.mark.parametrize("name", SHARED)
def test_what_shares_memory_shares_it_afterwards_as_on_the_cpu(name, way, tmp_path):
    def send(value):
        if way == "deepcopy":
            return copy.deepcopy(value)
        if way == "pickle":
            return pickle.loads(pickle.dumps(value))
        torch.save(value, tmp_path / "file.pt")
        location = "cpu" if way == "file to the CPU" else None
        return torch.load(tmp_path / "file.pt", location, weights_only=False, mmap=way == "mmap")

    def outcome(device):
        original = SHARED[name](torch.arange(6.0, device=device).reshape(3, 2))
        try:
            twin = send(original)
        except Exception as error:
            return type(error), str(error)
        tensors = [p for p in parts(twin) if isinstance(p, torch.Tensor)]
        with torch.no_grad():
            before = [t.detach().cpu().clone() for t in tensors]
            tensors[0].add_(1)
        untouched = [p.detach().cpu().resolve_conj() for p in parts(original) if isinstance(p, torch.Tensor)]
        return sharing(twin), [t.tolist() for t in [*before, *(t.detach().cpu() for t in tensors), *untouched]]

    assert outcome("mps") == outcome("cpu")


def test_a_change_of_a_copied_tensor_shows_in_the_copied_view():
    w = torch.arange(4.0, device="mps")
    a, b = copy.deepcopy((w, w[1:]))
    a[2] = 9
    assert b.tolist() == [1, 9, 3] and w.tolist() == [0, 1, 2, 3]
    tied = copy.deepcopy(tied_module("mps"))
    assert tied[0].weight is tied[1].weight


def test_memory_of_this_process_is_not_shared_with_another():
    """A storage of the CPU would be moved to shared memory; one of mps cannot, and says so wherever it is tried."""
    storage = torch.UntypedStorage(4, device="mps")
    things = [
        torch.ones(3, device="mps"),
        torch.empty(0, device="mps"),
        nn.Parameter(torch.ones(2, device="mps")),
        storage,
    ]
    for thing in things:
        assert not thing.is_shared()
        for share in (lambda t: t.share_memory_(), ForkingPickler.dumps):
            with pytest.raises(RuntimeError, match="Cannot share an MPS storage between processes.*tensor.cpu()"):
                share(thing)
        assert not thing.is_shared()
    with pytest.raises(RuntimeError, match="Cannot share an MPS storage"):
        nn.Linear(2, 2, device="mps").share_memory()
    assert torch.ones(3).share_memory_().is_shared()
    assert pickle.loads(ForkingPickler.dumps(torch.arange(3.0))).tolist() == [0, 1, 2]


def test_deepcopy_of_a_module_shares_nothing():
    module = nn.Linear(3, 3, device="mps")
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.weight.zero_()
    assert module.weight.abs().sum().item() > 0
    assert twin.weight.requires_grad and isinstance(twin.weight, nn.Parameter)


@pytest.mark.parametrize("dtype", REAL_DTYPES, ids=str)
def test_safetensors(tmp_path, dtype):
    x = sample(dtype)
    save_file({"x": x.to("mps"), "y": x.to("mps")[:2].clone()}, tmp_path / "t.safetensors")
    for device in ("mps", "cpu"):
        loaded = load_file(tmp_path / "t.safetensors", device=device)
        assert loaded["x"].device.type == device
        assert torch.equal(loaded["x"].cpu(), x) and torch.equal(loaded["y"].cpu(), x[:2])


def test_storages():
    storage = torch.UntypedStorage(6, device="mps")
    assert (storage.device, storage.nbytes()) == (torch.device("mps:0"), 6)
    storage.fill_(7)
    assert list(storage.cpu()) == [7] * 6
    assert list(torch.UntypedStorage([1, 2, 3], device="mps").cpu()) == [1, 2, 3]
    assert list(torch.UntypedStorage([1, 2, 3]).mps().cpu()) == [1, 2, 3]
    assert torch.UntypedStorage(device="mps").nbytes() == 0
    with pytest.raises((TypeError, RuntimeError)):
        torch.UntypedStorage(1, 2, device="mps")


def test_numpy():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    on_device = torch.from_numpy(x).to("mps")
    assert np.array_equal(on_device.cpu().numpy(), x)
    with pytest.raises(TypeError, match="can't convert mps:0 device type tensor to numpy"):
        on_device.numpy()
    assert torch.tensor(x, device="mps").sum().item() == 15.0
