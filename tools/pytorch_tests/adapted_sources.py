"""Copies of PyTorch's tests, adapted for a device.

Those of torch.compile lose what they expect of Apple's generator of Metal kernels, those of torch.distributed name the
device where they name CUDA.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

# Lists of test_torchinductor_opinfo.py that name devices: what holds for CUDA (tolerances, few samples of slow
# operators, what no compiler can give) is taken for mps.
LISTS = ("inductor_skips", "inductor_expected_failures_single_sample", "inductor_should_fail_with_exception")
LISTS += ("inductor_gradient_expected_failures_single_sample",)
LATER_LISTS = ("inductor_override_kwargs", "inductor_one_sample")


def as_for_cuda(names: tuple[str, ...]) -> str:
    lines = (f'{name}["mps"] = {{**{name}.get("cuda", {{}}), **{name}.get("mps", {{}})}}\n' for name in names)
    return "".join(lines)


# A pattern and what stands for it; DEVICE is put in.
ADAPTED = [
    (r"def xfail_if_mps\(fn\):\n", "def xfail_if_mps(fn):\n    return fn\n\n\ndef _xfail_if_metal(fn):\n"),
    (r'self\.device != GPU_TYPE or self\.device == "mps"', "self.device != GPU_TYPE"),
    (r'if self\.device == "mps":(\s+raise unittest\.SkipTest\(\s+"MPS (?:inductor )?codegen)', r"if False:\1"),
    (r"if is_mps_backend\(self\.device\) and torch\._inductor\.config\.align_random_eager:", "if False:"),
    (r"\ndef get_skips_and_xfails", "\n" + as_for_cuda(LISTS) + "\n\ndef get_skips_and_xfails"),
    (r"\n(def _inductor_extra_samples)", "\n" + as_for_cuda(LATER_LISTS) + r"\n\n\1"),
    # With Triton eager results of the same dtype are the reference, without it those of float32.
    (r"if has_triton\(\):(\s+adjusted_kwargs\.update\(\s+copy_to_gpu=False)", r"if True:\1"),
    (r'NPU_TYPE = "npu"', 'NPU_TYPE = "DEVICE"'),
    (r"HAS_NPU = .*", "HAS_NPU = True"),
]
# Of single files: what names CUDA where any device with graphs would do, and imports of Triton that need it without
# asking for it. The pools of CUDA's allocator are not there.
ADAPTED_FILES = {
    "test_aot_inductor.py": [(r"if HAS_GPU:(\s+import triton)", r"if False:\1")],
    "test_flex_attention.py": [(r'test_device = \("xpu",\)', 'test_device = ("DEVICE",)')],
    "test_flex_decoding.py": [
        (r'test_device = \("(?:xpu|cpu)",\)', 'test_device = ("DEVICE",)'),
        (r"SKIP_UT_ON_CPU = True", "SKIP_UT_ON_CPU = False"),
    ],
    "test_fused_attention.py": [(r"if HAS_XPU_AND_TRITON or .*:", "if True:")],
    "test_perf.py": [(r"if HAS_GPU_AND_TRITON:(\s+import triton)", r"if False:\1")],
    "test_cudagraph_trees.py": [
        (r"HAS_CUDA_AND_TRITON(?=:)|TEST_CUDA_GRAPH(?=:)", "True"),
        (r"\.cuda\(\)", '.to("DEVICE")'),
        (r"([\"'])cuda(:0)?\1", r"\1DEVICE\2\1"),
        (r"torch\.cuda\.memory_snapshot\(\)", "[]"),
        (r"torch\.cuda\.(synchronize|empty_cache|set_rng_state|get_rng_state)", r"torch.DEVICE.\1"),
    ],
}
EXPECTED_FAILURE = re.compile(r"TestFailure\(.*?\)", re.DOTALL)


# Of torch.distributed: what names CUDA stands for DEVICE, whose process groups are those of gloo.
ADAPTED_DISTRIBUTED = [
    (r"\bcpu:gloo,cuda:nccl\b", "gloo"),
    (r"\bcuda:nccl\b", "DEVICE:gloo"),
    (r"((?:backend ?= ?|return |init_process_group\(\s*|\{)[\"'])nccl(?=[\"'])", r"\1gloo"),
    (r"([\"'])nccl\1(?= if )", r"\1gloo\1"),
    (r'BACKEND != "nccl"', "False"),  # of tests that gloo's tensors of CUDA do not pass
    # The profiler has no events of gloo's names for other tensors than the CPU's; what follows compares results.
    (r"(PROFILING_SUPPORTED_BACKENDS = )\[", r"\1[] and ["),
    (r"([\"'])cuda(:\d|:)?(?=[\"'{])", r"\1DEVICE\2"),
    (r"import torch\.cuda\b(?!\.)", "import torch"),
    (r"\btorch\.cuda\.(?!(?:amp|nccl)\b)", "torch.DEVICE."),
]
# Of single files, which ask for NCCL where any backend would do.
OPENED = [(r" *@requires_(?:nccl\(\)|cuda)\n", "")]
OPENED_FILES = ("test_compute_comm_reordering.py", "test_ddp_hooks.py", "test_inductor_collectives.py")
ADAPTED_DISTRIBUTED_FILES = dict.fromkeys(OPENED_FILES, OPENED)
# It divides the devices of the machine among the ranks by itself.
ADAPTED_DISTRIBUTED_FILES["test_ddp_hooks.py"] = [*OPENED, (r"gpus_for_rank\(.*\)\[self\.rank\]\[0\]", "self.rank")]
# The suite of the wheel is a base class, which PyTorch's repository has a file for.
WHEEL_SUITE = "distributed_test.py"
WHEEL_CLASS = """

class DistributedTestOfRanks(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()
"""


def adapted(name: str, text: str, device: str) -> str:
    for pattern, replacement in [*ADAPTED, *ADAPTED_FILES.get(name, ())]:
        text = re.sub(pattern, replacement.replace("DEVICE", device), text)
    return EXPECTED_FAILURE.sub(lambda match: match[0].replace('"mps"', '"metal"'), text)


def adapted_distributed(name: str, text: str, device: str) -> str:
    for pattern, replacement in [*ADAPTED_DISTRIBUTED, *ADAPTED_DISTRIBUTED_FILES.get(name, ())]:
        text = re.sub(pattern, replacement.replace("DEVICE", device), text)
    return text + WHEEL_CLASS if name == WHEEL_SUITE else text


def adapt_inductor(tree: Path, copy: Path, device: str) -> None:
    """Writes the files of TREE/test/inductor, adapted for a device, to copy/test/inductor."""
    _adapt_folder(tree, copy, device, Path("test", "inductor"), adapted)


def adapt_distributed(tree: Path, copy: Path, device: str) -> None:
    """Writes those of TREE/test/distributed, and the suite that the wheel of PyTorch holds."""
    folder = Path("test", "distributed")
    _adapt_folder(tree, copy, device, folder, adapted_distributed)
    wheel = Path(find_spec("torch.testing").origin).parent / "_internal" / "distributed" / WHEEL_SUITE
    (copy / folder / WHEEL_SUITE).write_text(adapted_distributed(WHEEL_SUITE, wheel.read_text(), device))


def _adapt_folder(tree: Path, copy: Path, device: str, folder: Path, adapted: Callable[[str, str, str], str]) -> None:
    (copy / folder).mkdir(parents=True)
    for path in (tree / folder).rglob("*"):
        if path.is_dir() or "__pycache__" in path.parts:
            continue
        target = copy / path.relative_to(tree)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(
            adapted(path.name, path.read_text(), device).encode() if path.suffix == ".py" else path.read_bytes()
        )
