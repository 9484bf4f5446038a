"""Devices that we don't have: the software driver reports each of tests/devices and keeps to its memory."""

from __future__ import annotations

import re

import pytest
from device_profiles import PROFILES, environment, layer_folder, load
from test_validation import SCRIPT, validation_folder

REFUSED = {"raspberry_pi_5": "V3D 7.1.7.0: it lacks shaderInt64, shaderInt16, shaderInt8."}
SERVED = [name for name in PROFILES if name not in REFUSED]

pytestmark = pytest.mark.skipif(
    layer_folder() is None, reason="the layer is not built (cmake -DANYMPS_BUILD_TESTS=ON, target anymps_device_layer)"
)


@pytest.fixture
def device(tmp_path, run_python):
    """Runs a script on a device of tests/devices and returns what it prints; it must not fail."""

    def run(name: str, script: str, *arguments: str, subgroups: bool = False, **variables: str) -> str:
        result = run_python(script, *arguments, env=environment(name, tmp_path, subgroups) | variables)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run


INFO = "import runpy; runpy.run_module('torch_anymps.info', run_name='__main__')"


def test_profiles_say_where_they_are_from():
    for name in PROFILES:
        profile = load(name)
        assert profile["sources"] and all(source.startswith("https://") for source in profile["sources"])
        assert all(kind["heap"] < len(profile["heaps"]) for kind in profile["types"])


@pytest.mark.parametrize("name", SERVED)
def test_info(name, device):
    profile = load(name)
    report = device(name, "import sys\ntry:\n    " + INFO + "\nexcept SystemExit as end:\n    assert not end.code",
                    subgroups=True)  # fmt: skip
    sizes = profile["subgroups"]
    assert f"device:               {profile['name']}" in report
    assert f"subgroup sizes:       {sizes['min']} to {sizes['max']}" in report
    assert f"shared memory:        {profile['limits']['maxComputeSharedMemorySize'] // 1024} KiB" in report
    for index, heap in enumerate(profile["heaps"]):
        assert f"memory heap {index}:        {heap['mib'] / 1024:.1f} GiB" in report
    assert report.count("memory type ") == len(profile["types"])


@pytest.mark.parametrize("name", REFUSED)
def test_info_names_what_is_missing(name, tmp_path, run_python):
    result = run_python(INFO, env=environment(name, tmp_path))
    assert result.returncode == 1
    assert f"mps is not available: No Vulkan device is suitable: {REFUSED[name]}\n" in result.stdout


FILES = [("test_smoke.py", ""), ("test_memory.py", ""), ("test_training.py", "hundred and images")]


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("file, tests", FILES)
def test_with(name, file, tests, tmp_path, passes):
    passes(file, tests, **environment(name, tmp_path))


@pytest.mark.skipif(validation_folder() is None, reason="no validation layer (vulkan-validationlayers)")
@pytest.mark.parametrize("name", SERVED)
def test_validation(name, tmp_path, run_python):
    """By the limits, features and memory of the device: mapped types, heaps, workgroups, shared memory, extensions."""
    result = run_python(SCRIPT, env=environment(name, tmp_path, validation=validation_folder()))
    assert result.stdout.strip() == "finished" and "Validation" not in result.stderr, result.stdout + result.stderr


@pytest.mark.skipif(validation_folder() is None, reason="no validation layer (vulkan-validationlayers)")
def test_validation_goes_by_the_profile(tmp_path, run_python):
    variables = environment("uhd_620", tmp_path, validation=validation_folder())
    file = tmp_path / "uhd_620.profile"
    file.write_text(file.read_text().replace("maxComputeWorkGroupSizeX 1024", "maxComputeWorkGroupSizeX 2"))
    result = run_python("import torch; torch.ones(9, device='mps').sum().item()", env=variables)
    assert "exceeds device limit maxComputeWorkGroupSize[0] (2)" in result.stdout + result.stderr


COPIES = """if True:
    import torch
    x = torch.randn(10 << 20)
    y = x.to("mps")
    assert torch.equal(y.cpu(), x) and torch.equal((y * 2).cpu(), x * 2)
    small = torch.arange(1000).to("mps")
    assert small[7:].sum().item() == sum(range(7, 1000))
    part = torch.zeros(3 << 20, device="mps")
    part[5:1000005].copy_(x[:1000000])
    assert torch.equal(part.cpu()[5:1000005], x[:1000000]) and part.cpu().count_nonzero() <= 1000000
    pinned = x.pin_memory()
    assert torch.equal(pinned.to("mps", non_blocking=True).cpu(), x)
    q, r = torch.linalg.qr(y[:4096].view(64, 64))  # LAPACK, on the device's memory where the host sees it
    assert torch.allclose((q @ r).cpu(), x[:4096].view(64, 64), atol=1e-4)
"""


@pytest.mark.parametrize("name", SERVED)
def test_copies(name, device):
    """With and without memory that the host maps; the layer lets nobody map what the device does not."""
    device(name, COPIES)


FEW_REGISTERS = """if True:
    import torch, torch.nn.functional as F
    def compare(call, *inputs):
        results = []
        for device in ("cpu", "mps"):
            torch.manual_seed(0)
            leaves = [t.detach().to(device).requires_grad_() for t in inputs]
            out = call(*leaves)
            grads = torch.autograd.grad(out, leaves, torch.linspace(-1, 1, out.numel(), device=device).view_as(out))
            results.append([out, *grads])
        for ours, theirs in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=2e-4, atol=2e-4 * theirs.abs().max().item())
    torch.manual_seed(1)
    taps, bias = torch.randn(250, 24, 3, 3) / 15, torch.randn(250)
    compare(lambda x, w, b: F.conv2d(x, w, b, padding=1), torch.randn(2, 24, 45, 45), taps, bias)
    last = torch.randn(2, 24, 91, 91).contiguous(memory_format=torch.channels_last)
    compare(lambda x, w, b: F.conv2d(x, w, b, stride=2), last, taps, bias)
    compare(lambda x, w: F.conv2d(x, w.transpose(0, 1), padding=1), torch.randn(2, 250, 45, 45), taps)
    compare(lambda x, w: F.conv3d(x, w, padding=1), torch.randn(1, 8, 16, 16, 16), torch.randn(250, 8, 3, 3, 3) / 15)
    a, b, c = torch.randn(3, 1001, 101), torch.randn(3, 101, 900), torch.randn(3, 1001, 900)
    compare(lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5), c, a, b)
    compare(lambda a, b: a.mT @ b.mT, a.mT.contiguous(), b.mT.contiguous())
    compare(lambda a, b: a @ b, torch.randn(1000, 104).t().contiguous().t(), torch.randn(104, 2800))
    for kind in (torch.nn.LSTM, torch.nn.GRU):
        net = kind(40, 515)
        def step(x, *weights):
            own = {n: w for n, w in zip(dict(net.named_parameters()), weights, strict=True)}
            return torch.func.functional_call(net, own, x)[0]
        compare(step, torch.randn(2, 197, 40), *net.parameters())
    compare(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), torch.randn(9, 5, 40, 41), *torch.rand(2, 5))
    compare(lambda x: F.nll_loss(x, torch.arange(7000, device=x.device) % 30, x.detach()[0].abs()),
            torch.randn(7000, 30))
"""


def test_kernels_for_few_registers(tmp_path, run_python):
    """Those that are launched on Intel's GPUs alone, with odd sizes: results and gradients are the CPU's."""
    variables = environment("arc_a770", tmp_path) | {"ANYMPS_LOG": "dispatch"}
    result = run_python(FEW_REGISTERS, env=variables, timeout=1200)
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]
    tiles = ("conv_shared_128x128_f32", "conv_shared_128x128_swapped_f32", "matmul_shared_128x128_f32")
    for kernel in (*tiles, "rnn_backward_32x32"):
        assert f"{kernel}_lean[" in result.stderr
    assert "norm_gradients_f32" in result.stderr and "weighted_loss_f32" in result.stderr


FILL = """if True:
    import sys, torch
    mib, count, whole = map(int, sys.argv[1:])
    held = []
    try:
        for i in range(count):
            held.append(torch.empty(mib << 18, dtype=torch.float32, device="mps"))
            if whole:
                held[-1].fill_(i)
            else:
                held[-1][::1 << 20] = i
    except torch.OutOfMemoryError as error:
        print("full after", len(held))
    for i, t in enumerate(held):
        assert t[:: 1 << 20].cpu().eq(i).all() and (not whole or t.cpu().eq(i).all())
    print("held", len(held), torch.mps.driver_allocated_memory() >> 20)
    del held, t
    torch.mps.empty_cache()
    assert torch.ones(1 << 20, device="mps").sum().item() == 1 << 20
"""


def test_allocations_go_on_in_the_other_heap_of_an_integrated_gpu(device):
    """512 MiB of its own are no limit: 1.4 GiB lie in both heaps, and both are read and written."""
    assert "held 7 " in device("vega_igpu", FILL, "200", "7", "1")


def test_a_card_stays_out_of_system_memory(device):
    """8 GiB: the tensor that they do not hold raises, though 8 GiB of the system's memory could be had."""
    out = device("rdna2_no_rebar", FILL, "2048", "5", "0")
    assert "full after 3\nheld 3 " in out


def test_memory_of_an_integrated_gpu_has_a_limit(device):
    script = """if True:
        import torch
        free, total = torch.accelerator.get_memory_info()
        assert 0.85 * total < free < total
        print(torch.mps.recommended_max_memory() >> 20, total >> 20)"""
    assert device("vega_igpu", script).split() == ["4103", "8207"]
    assert device("rdna2_no_rebar", script).split() == ["7782", "8192"]


@pytest.mark.parametrize("name, bytes_", [("mali_g610", 1 << 30), ("uhd_620", 1 << 31)])
def test_a_tensor_larger_than_a_buffer(name, bytes_, device):
    script = f"""if True:
        import torch
        try:
            torch.empty({bytes_} + 1, dtype=torch.uint8, device="mps")
        except RuntimeError as error:
            assert not isinstance(error, torch.OutOfMemoryError), error
            print(error)"""
    assert f"allows at most {bytes_} bytes" in device(name, script)


def test_without_timestamps(device):
    script = """if True:
        import torch, torch_anymps
        try:
            with torch_anymps.profile():
                pass
        except RuntimeError as error:
            print(error)
        print(torch.ones(3, device="mps").sum().item())"""
    assert "has no timestamps, which a profile needs\n3.0" in device("apple_m1", script)


SUBMISSIONS = """if True:
    import os, torch
    x = torch.zeros(1 << 20, device="mps")
    def submissions(call):
        torch.mps.synchronize()
        before = os.path.getsize(os.environ["ANYMPS_SUBMISSIONS"])
        call()
        torch.mps.synchronize()
        return (os.path.getsize(os.environ["ANYMPS_SUBMISSIONS"]) - before) // 2
    def adds():
        for _ in range(10):
            x.add_(1)
    x.add_(1)
    graph = torch.accelerator.Graph()
    with graph:
        adds()
    count = submissions(graph.replay)
    assert x.eq(11).all()
    print(count, submissions(adds))"""


def test_submissions_are_cut_by_time(device, tmp_path):
    """Ten adds of 4 MiB, read and written: 335 us each at 25 GB/s."""

    def counts(seconds: str) -> list[int]:
        variables = {"ANYMPS_SUBMISSION_SECONDS": seconds, "ANYMPS_SUBMISSIONS": str(tmp_path / "submissions")}
        return [int(n) for n in device("uhd_620", SUBMISSIONS, **variables).split()]

    graph, eager = counts("4e-4")
    assert graph == 10 and eager >= 10
    graph, eager = counts("7e-4")
    assert graph == 5 and eager >= 5
    graph, eager = counts("0")
    assert graph == 1 and eager <= 4


DECODING = """
import torch
from torch.nn.functional import scaled_dot_product_attention as attention
for size, heads, queries in ((64, 3, 1), (64, 6, 1), (96, 3, 1), (200, 3, 2)):
    q, k, v = (torch.randn(2, h, n, size) for h, n in ((heads, queries), (3, 300), (3, 300)))
    mask = torch.rand(2, 1, queries, 300) > 0.3
    result = attention(q.to("mps"), k.to("mps"), v.to("mps"), mask.to("mps"), enable_gqa=True)
    torch.testing.assert_close(result.cpu(), attention(q, k, v, mask, enable_gqa=True))
"""


def test_kernels_of_few_registers(tmp_path, run_python):
    """Those of Intel's GPUs before Xe2, which ask for subgroups of 8; lavapipe's have as many."""
    env = environment("uhd_620", tmp_path, subgroups=True) | {"ANYMPS_LOG": "dispatch"}
    result = run_python(DECODING, env=env)
    assert result.returncode == 0, result.stderr[-2000:]
    for kernel in ("1", "2", "pieces_2", "long"):
        assert f"attention_decode_{kernel}_lean[128,8," in result.stderr


ATTENTION = """
import torch
from torch.nn.functional import scaled_dot_product_attention as attention
for size, heads, dtype, causal, masked in (
    (64, 2, torch.float32, True, False), (40, 4, torch.float16, False, True), (80, 2, torch.float32, False, True),
    (128, 4, torch.float32, True, False), (128, 2, torch.float16, False, False)):
    inputs = [torch.randn(2, h, n, size).to(dtype) for h, n in ((heads, 190), (2, 170), (2, 170))]
    mask = torch.randn(2, 1, 190, 170) if masked else None
    results = []
    for device in "cpu", "mps":
        kept = torch.float32 if device == "cpu" else dtype
        q, k, v = (t.to(device, kept, copy=True).requires_grad_() for t in inputs)
        bias = None if mask is None else mask.to(device, kept)
        out = attention(q, k, v, bias, is_causal=causal, enable_gqa=True)
        out.backward(torch.ones_like(out) + q.detach())
        results.append([out, q.grad, k.grad, v.grad])
    for expected, actual in zip(*results):
        error = (actual.cpu().float() - expected).abs().max() / expected.abs().max()
        assert error < (2e-6 if dtype == torch.float32 else 2e-3), (size, dtype, causal, float(error))
"""


def test_attention_with_few_registers(tmp_path, run_python):
    """Tiles whose loops stay loops, and gradients of long heads' keys and values in a dispatch each."""
    env = environment("uhd_620", tmp_path) | {"ANYMPS_LOG": "dispatch"}
    result = run_python(ATTENTION, env=env)
    assert result.returncode == 0, result.stderr[-2000:]
    for kernel in ("forward", "query_gradient", "key_gradient"):
        for size in (64, 128):
            assert f"flash_simt_{kernel}_{size}_lean[128,8," in result.stderr
    gradients = re.findall(r"flash_simt_key_gradient_(\d+)_lean\[[\d,]*,(\d)\]", result.stderr)
    assert set(gradients) == {("64", "3"), ("128", "1"), ("128", "2")}
