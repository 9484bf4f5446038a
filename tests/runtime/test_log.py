"""ANYMPS_LOG: reports at the end of a process, plans and dispatches as they come."""

import re

import pytest

pytestmark = pytest.mark.usefixtures("mps")

WORK = """
import torch
x = torch.randn(5, 5, device="mps")
for _ in range(3):
    torch.linalg.eigh(x)
    x = x * 0.5
y = torch.randn(700, 700, device="mps")
(y @ y @ y @ y).sum().item()
{more}
"""


@pytest.fixture
def report(run_python):
    def report(words: str, more: str = "", **variables: str) -> list[str]:
        done = run_python(WORK.format(more=more), env={"ANYMPS_LOG": words} | variables)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stderr.splitlines() if line.startswith("ANYMPS_LOG")]

    return report


def test_slow_says_what_was_waited_for(report):
    lines = report("slow")
    assert any("aten::_linalg_eigh" in line and "LAPACK on the CPU: 3 calls" in line for line in lines)
    [device] = [line for line in lines if "waited for the device" in line]
    assert int(device.split(": ")[2].split()[0]) >= 1
    seconds = [float(line.rpartition(", ")[2].split()[0]) for line in lines if line.endswith(" s")]
    assert seconds == sorted(seconds, reverse=True)


OF_ONE_THREAD = """
kernel = torch.mps.compile_shader('''
[shader("compute")] [numthreads(1, 1, 1)]
void chain(uniform float* x)
{
    for (uint i = 0; i < 20000000; ++i)
        x[0] = x[0] * 1.5f + 1.0f;
}
''')
for _ in range(2):
    kernel.chain(torch.zeros(1, device="mps"), threads=1)
"""


def test_slow_kernels_are_named(report):
    """One thread that computes for long is far from what its bytes need."""
    *kernels, total = report("slow_kernels", OF_ONE_THREAD)
    chain = r"ANYMPS_LOG slow_kernels: chain, 1 workgroups: \d+\.\d times its bound, 2 calls, \d"
    assert re.match(chain, kernels[0])
    assert re.search(r"of \d+\.\d+ s on the device in \d+ such kernels, by launch=", total)


def test_slow_kernels_without_a_device(run_python):
    nowhere = {"VK_DRIVER_FILES": "/none", "VK_ICD_FILENAMES": "/none"}
    done = run_python("import torch", env={"ANYMPS_LOG": "slow_kernels"} | nowhere)
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if line.startswith("ANYMPS_LOG slow_kernels: ")], done.stderr


OF_THE_CPU_ALONE = """
library = torch.library.Library("codec", "DEF")
library.define("decode(Tensor x) -> Tensor")
library.impl("decode", lambda x: x + 1, "CPU")
for _ in range(2):
    torch.ops.codec.decode(x)
"""


def test_fallbacks_are_listed(report):
    assert report("fallbacks") == ["ANYMPS_LOG fallbacks: every operator ran on the device"]
    [line] = report("fallbacks", OF_THE_CPU_ALONE, PYTORCH_ENABLE_MPS_FALLBACK="1")
    assert line.startswith("ANYMPS_LOG fallbacks: codec::decode ran on the CPU: 2 calls, ")


def test_several_reports_and_words_that_are_none(report):
    lines = report("fallbacks, slow,typo")
    assert {line.split(":")[0] for line in lines} == {"ANYMPS_LOG fallbacks", "ANYMPS_LOG slow", "ANYMPS_LOG typo"}
    assert (
        lines[-1] == "ANYMPS_LOG typo: no report of this name; there are fallbacks, slow, slow_kernels, plan, dispatch"
    )
    assert report("") == []


def test_each_distinct_plan_is_printed_once(report):
    lines = [line for line in report("plan") if " 700 x 700 x 700: " in line]
    assert len(lines) == 1 and lines[0].startswith("ANYMPS_LOG plan: mm 1 of 700 x 700 x 700: ")
    assert ", split-K 1" in lines[0]


CONVOLUTIONS = """
x, w = torch.randn(2, 8, 9, 9, device="mps"), torch.randn(6, 8, 3, 3, device="mps")
for _ in range(3):
    torch.conv2d(x, w, padding=1)
torch.conv2d(x, w)
"""


def test_a_plan_of_convolutions_is_made_once(report):
    first, second = (line for line in report("plan", CONVOLUTIONS) if " plan: convolution fprop " in line)
    assert "of [2, 8, 9, 9] * [6, 8, 3, 3] = [2, 6, 9, 9] Float" in first and "padding [1, 1]" in first
    assert "= [2, 6, 7, 7]" in second and second.endswith(" bytes")


def test_every_dispatch_is_printed(report):
    lines = report("fallbacks,dispatch")
    products = [line for line in lines if line.startswith("ANYMPS_LOG dispatch: matmul_")]
    assert len(products) == 3
    form = r"ANYMPS_LOG dispatch: \w+\[(\d+,?)*\], grid (\d+ x \d+ x \d+|in memory), \d+ bytes of arguments, "
    form += r"\d+ us on a slow device"
    assert all(re.fullmatch(form, line) for line in lines[:-1])
    assert lines[-1].startswith("ANYMPS_LOG fallbacks: ")


ROUTES = """
z = torch.randn(4, 8, 6, 6, device="mps", requires_grad=True)
torch.nn.functional.batch_norm(z, None, None, training=True).sum().backward()
torch.nn.functional.group_norm(z, 2).sum().backward()
y.sum(0); y.amax(1); y.sort(1); y.t().contiguous(); y.half()
torch.nn.functional.scaled_dot_product_attention(z, z, z).sum().backward()
torch.softmax(y, 1); torch.log_softmax(y.t(), 0)
w = torch.ones(700, device="mps")
for norm in (torch.nn.functional.layer_norm, torch.nn.functional.rms_norm):
    norm(y.requires_grad_(), (700,), w).sum().backward()
"""


WAYS = {
    "sum": {"columns", "reduce_outer"},
    "amax": {"rows"},
    "batch_norm": {"reduce", "reduce_nc_hw_moments", "reduce_nc_hw_gradients"},
    "group_norm": {"reduce, channel_norm", "group_gradients"},
    "channel_norm": {"same_channel"},
    "sort": {"merge", "radix_tiles"},
    "copy": {"bits", "transposed_words"},
    "attention": {"chunked", "decode", "flash_simt"},
    "attention_backward": {"chunked", "flash_simt"},
}


def test_routes_are_plans(report):
    names = [line.removeprefix("ANYMPS_LOG plan: ").split(" ", 1) for line in report("plan", ROUTES)]
    routes = {(op, text.rpartition(": ")[2]) for op, text in names}
    assert {("softmax", "row_team"), ("log_softmax", "row_team")} <= routes
    for op, ways in WAYS.items():  # by the device
        assert {route for name, route in routes if name == op} & ways, op
    for norm in ("layer_norm", "rms_norm"):
        assert {(norm, "row_team"), (norm, "persistent_subgroup")} & routes  # by the size of a subgroup
        assert (norm, "row_team, reduce") in routes
