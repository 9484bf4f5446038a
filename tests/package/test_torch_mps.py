"""The Python interface: torch.mps, torch.backends.mps, torch.accelerator and events."""

import pytest
import torch

pytestmark = pytest.mark.usefixtures("mps")


def test_backend():
    assert torch.backends.mps.is_built() and torch.backends.mps.is_available()
    assert torch.backends.mps.is_macos13_or_newer() and torch.backends.mps.is_macos_or_newer(26, 0)
    assert isinstance(torch.backends.mps.get_name(), str) and torch.backends.mps.get_core_count() >= 1


def test_accelerator():
    accelerator = torch.accelerator
    assert accelerator.is_available() and accelerator.device_count() == 1
    assert accelerator.current_accelerator() == torch.device("mps")
    assert accelerator.current_device_index() == torch.mps.current_device() == 0
    accelerator.set_device_index(0)
    accelerator.synchronize()
    assert accelerator.current_stream().device == torch.device("mps:0")
    with accelerator.device_index(0):
        assert torch.ones(1, device=accelerator.current_accelerator()).device.type == "mps"
    with pytest.raises(RuntimeError):
        accelerator.set_device_index(1)
    free, total = accelerator.get_memory_info()
    assert 0 < free <= total


def test_memory_numbers(no_garbage):
    torch.mps.empty_cache()
    before = torch.mps.current_allocated_memory()
    assert torch.accelerator.memory_allocated() == before
    torch.accelerator.reset_peak_memory_stats()
    x = torch.zeros(1 << 18, device="mps")
    assert torch.mps.current_allocated_memory() == before + x.nbytes
    assert torch.mps.driver_allocated_memory() >= torch.mps.current_allocated_memory()
    assert torch.accelerator.memory_reserved() == torch.mps.driver_allocated_memory()
    del x
    assert torch.accelerator.max_memory_allocated() >= before + (1 << 20)
    assert torch.mps.recommended_max_memory() > 1 << 28
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == before
    torch.accelerator.empty_cache()


def test_memory_fraction():
    try:
        torch.mps.set_per_process_memory_fraction(0.0)
        torch.mps.set_per_process_memory_fraction(0.5)
        with pytest.raises(TypeError):
            torch.mps.set_per_process_memory_fraction(1)
        with pytest.raises(ValueError):
            torch.mps.set_per_process_memory_fraction(2.5)
    finally:
        torch.mps.set_per_process_memory_fraction(1.0)


def test_random_state():
    torch.mps.manual_seed(5)
    state = torch.mps.get_rng_state()
    first = torch.rand(100, device="mps")
    torch.mps.set_rng_state(state)
    assert torch.equal(torch.rand(100, device="mps").cpu(), first.cpu())
    torch.mps.seed()
    assert not torch.equal(torch.rand(100, device="mps").cpu(), first.cpu())
    with torch.random.fork_rng(devices=[0], device_type="mps"):
        torch.rand(3, device="mps")
    generator = torch.Generator(device="mps").manual_seed(5)
    assert generator.device.type == "mps" and generator.initial_seed() == 5


def test_random_state_in_modes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    state = torch.mps.get_rng_state()
    first = torch.rand(100, device="mps").cpu()
    with FakeTensorMode():
        torch.mps.set_rng_state(state)
    assert torch.equal(torch.rand(100, device="mps").cpu(), first)
    torch.mps.set_rng_state(state.repeat_interleave(2)[::2])
    assert torch.equal(torch.rand(100, device="mps").cpu(), first)


def test_events():
    start, end = torch.mps.Event(enable_timing=True), torch.mps.Event(enable_timing=True)
    x = torch.ones(1 << 16, device="mps")
    start.record()
    for _ in range(20):
        x = x * 1.01
    end.record()
    end.wait()
    end.synchronize()
    assert start.query() and end.query()
    assert 0 < start.elapsed_time(end) < 60_000
    generic = torch.Event("mps", enable_timing=True)
    generic.record()
    generic.synchronize()
    assert generic.query()
    untimed = torch.mps.Event()
    untimed.record()
    untimed.synchronize()
    with pytest.raises(RuntimeError):
        untimed.elapsed_time(end)


def test_streams():
    stream = torch.Stream(device="mps")
    with stream:
        x = torch.ones(3, device="mps") * 2
    stream.synchronize()
    assert x.sum().item() == 6


def test_streams_of_torch_mps_share_a_queue():
    current, another = torch.mps.current_stream(), torch.mps.Stream(priority=-1)
    assert current == torch.mps.default_stream() == torch.accelerator.current_stream() == torch.mps.Stream(stream_id=0)
    assert another not in (current, torch.mps.Stream(), torch.mps.Stream("mps:0"), torch.mps.Stream(0))
    assert len({another, current, torch.mps.Stream(stream_id=another.stream_id)}) == 2
    assert isinstance(another, torch.Stream) and repr(current) == "<torch.mps.Stream stream_id=0>"
    assert (another.stream_id > 0, another.device_index, another.device) == (True, 0, torch.device("mps:0"))
    assert another.device_type == torch.Stream(device="mps").device_type
    torch.mps.set_stream(another)
    assert torch.mps.current_stream() == another
    torch.mps.set_stream(None)
    torch.mps.set_stream(current)
    with torch.mps.stream(another), torch.mps.stream(None):
        assert torch.mps.current_stream() == another == torch.accelerator.current_stream()
        x = torch.ones(3, device="mps") * 2
    assert torch.mps.current_stream() == current
    with another:
        x *= 2
    another.wait_stream(torch.mps.current_stream())
    torch.accelerator.current_stream().wait_stream(another)
    another.synchronize()
    assert another.query() and x.sum().item() == 12


def test_streams_take_both_kinds_of_events():
    stream = torch.mps.Stream()
    for event in (torch.mps.Event(), torch.Event("mps"), torch.mps.Event().record(stream)):
        assert stream.record_event(event) is event
        event.wait(stream)
        stream.wait_event(event)
        event.synchronize()
        assert event.query()
    torch.accelerator.current_stream().wait_event(stream.record_event())


def test_memory_may_be_recorded_for_a_stream():
    x = torch.ones(4, device="mps")
    assert x.record_stream(torch.mps.current_stream()) is None
    with pytest.raises(ValueError, match="the tensor is on mps:0, and the stream is of cpu"):
        x.record_stream(torch.Stream(device="cpu"))


def test_what_is_no_stream_or_event_of_mps_is_refused():
    stream = torch.mps.Stream()
    for call in (
        lambda: torch.mps.Stream("cpu"),
        lambda: torch.mps.set_stream(torch.Stream(device="cpu")),
        lambda: torch.mps.Event().record(torch.Stream(device="cpu")),
    ):
        with pytest.raises(ValueError, match="xpected a"):
            call()
    for method in (stream.wait_event, stream.record_event, stream.wait_stream, torch.mps.set_stream):
        with pytest.raises(TypeError, match="Expected a torch"):
            method(3)
    with pytest.raises(RuntimeError, match="Invalid MPS device index"):
        torch.mps.Stream(1)


def test_what_needs_metal_says_so():
    assert torch.mps.profiler.is_metal_capture_enabled() is False
    assert torch.mps.profiler.is_capturing_metal() is False
    with (
        pytest.raises(RuntimeError, match=r"Metal capture .* needs Apple's Metal"),
        torch.mps.profiler.metal_capture(""),
    ):
        pass
    for source in (b"metallib", "file.metallib"):
        with pytest.raises(RuntimeError, match=r"load_metallib.* needs Apple's Metal"):
            torch.mps.load_metallib(source)


def test_host_alias():
    x = torch.arange(8.0, device="mps")
    info = torch.ops.anymps.device_info()
    if '"UMA": false' in info:
        with pytest.raises(RuntimeError, match="unified memory"):
            torch.mps._host_alias_storage(x.untyped_storage())
        return
    alias = torch.mps._host_alias_storage(x.untyped_storage())
    assert alias.device.type == "cpu" and alias.nbytes() == 32
    view = torch.empty(0).set_(alias)
    assert view.tolist() == list(range(8))
    view += 1
    torch.mps.synchronize()
    assert x.tolist() == list(range(1, 9))
    with pytest.raises(RuntimeError, match="storage on mps"):
        torch.mps._host_alias_storage(torch.ones(1).untyped_storage())


def test_device_module_is_torch_mps():
    assert torch.get_device_module("mps") is torch.mps
    with torch.device("mps"):
        assert torch.ones(2).device.type == "mps"
    torch.set_default_device("mps")
    try:
        assert torch.zeros(1).device.type == "mps"
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("checkpointing", ["reentrant", "not reentrant"])
def test_activation_checkpointing_restores_random_state(checkpointing):
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(64, device="mps", requires_grad=True)

    def layer(x):
        return torch.nn.functional.dropout(x * 2, 0.5)

    y = checkpoint(layer, x, use_reentrant=checkpointing == "reentrant")
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())  # the same mask in forward and recomputed forward


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.int64, torch.complex64])
def test_bytes_of_a_storage_are_swapped_in_order(mps, dtype):
    def swapped(device):
        x = torch.arange(5, device=device).to(dtype)
        x.untyped_storage().byteswap(dtype)
        return x.view(torch.uint8).cpu()

    assert torch.equal(swapped(mps), swapped("cpu"))
