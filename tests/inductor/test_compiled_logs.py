"""What is seen of compiled functions: PyTorch's logs and debug folders show Slang, and run again what they show."""

from __future__ import annotations

import pytest

FUSED = "mps_fused_add_gelu_mul_0"
BODY = "store(out_ptr0, x2, tmp5)"
SCRIPT = """
import sys, torch
torch._inductor.config.trace.enabled |= "trace" in sys.argv
function = lambda x, bias: torch.nn.functional.gelu(x + bias) * 2
x, bias = torch.randn(64, 300, device="mps"), torch.randn(300, device="mps")
torch.testing.assert_close(torch.compile(function)(x, bias), function(x, bias))
"""


@pytest.fixture
def run(mps, run_python, tmp_path, monkeypatch):
    """Runs a script, with options, and gives its stderr. Its working directory and Inductor's caches are new ones."""
    monkeypatch.chdir(tmp_path)

    def run(script: str, *options: str, **variables: str) -> str:
        done = run_python(script, *options, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), **variables})
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


def test_output_code_is_logged(run):
    log = run(SCRIPT, TORCH_LOGS="output_code")
    assert f"{FUSED} = mps_kernel('{FUSED}'" in log and f"        {FUSED}(arg0_1, arg1_1, buf0, 19200)" in log
    assert BODY in log and "let tmp3 = float(gelu(kF32, tmp2));" in log
    assert "Original ATen: [aten.add, aten.gelu, aten.mul]" in log


@pytest.mark.parametrize("options, variables", [((), {"TORCH_COMPILE_DEBUG": "1"}), (("trace",), {})])
def test_debug_folders(run, tmp_path, options, variables):
    run(SCRIPT, *options, **variables)
    [module] = (tmp_path / "torch_compile_debug").rglob("output_code.py")
    text = module.read_text()
    assert f"{FUSED} = mps_kernel('{FUSED}'" in text and BODY in text
    files = {file.name: file.read_text() for file in module.parent.iterdir()}
    assert {"ir_pre_fusion.txt", "fx_graph_readable.py", "fx_graph_transformed.py"} <= files.keys()
    assert "FixedLayout('mps:0', torch.float32, size=[64, 300], stride=[300, 1])" in files["ir_post_fusion.txt"]
    if options:
        for name in ("output_code.py", "fx_graph_runnable.py"):
            run(str(module.parent / name))
