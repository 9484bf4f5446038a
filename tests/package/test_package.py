"""`import torch` never fails and never prints because of this package, and info says why there is no device."""

import importlib.metadata
import re
import subprocess

import pytest
import torch

import torch_anymps

AVAILABLE = "import torch; print(torch.backends.mps.is_available(), torch.backends.mps.is_built())"
NO_DRIVER = {"VK_DRIVER_FILES": "/nonexistent.json", "VK_ICD_FILENAMES": "/nonexistent.json"}

# Imports the loader as torch's autoload does, while torch counts as not imported yet, so that nothing is loaded.
LATE_LOAD = """
import sys; sys.modules["torch"].__spec__._initializing = True
import torch_anymps._load as load
sys.modules["torch"].__spec__._initializing = False
"""

# Makes dlopen("libvulkan.so.1") fail, as on a machine without the loader.
HIDE_LOADER = """
#include <cstring>
#include <dlfcn.h>
extern "C" void* dlopen(const char* name, int flags) {
    using Real = void* (*)(const char*, int);
    static const Real real = (Real)dlsym(RTLD_NEXT, "dlopen");
    return name && std::strstr(name, "libvulkan") ? nullptr : real(name, flags);
}
"""


@pytest.fixture(scope="session")
def hidden_loader(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hide")
    (folder / "hide.cpp").write_text(HIDE_LOADER)
    command = ["g++", "-shared", "-fPIC", "-o", "hide.so", "hide.cpp", "-ldl"]
    subprocess.run(command, cwd=folder, check=True)
    return {"LD_PRELOAD": str(folder / "hide.so")}


def info_of(run_python, env):
    return run_python("import runpy; runpy.run_module('torch_anymps.info', run_name='__main__')", env=env)


def check_quiet_and_unavailable(run_python, env, built):
    done = run_python(AVAILABLE, env=env, fresh=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"False {built}\n", "")


def test_no_driver(run_python):
    check_quiet_and_unavailable(run_python, NO_DRIVER, built=True)
    assert "No Vulkan driver is installed" in info_of(run_python, NO_DRIVER).stdout


def test_no_loader(run_python, hidden_loader):
    check_quiet_and_unavailable(run_python, hidden_loader, built=True)
    report = info_of(run_python, hidden_loader).stdout
    assert "libvulkan.so.1" in report and "apt install libvulkan1" in report


def test_no_device_of_that_name(run_python):
    env = {"ANYMPS_DEVICE": "no such device"}
    check_quiet_and_unavailable(run_python, env, built=True)
    assert "ANYMPS_DEVICE=no such device names none" in info_of(run_python, env).stdout


def test_disabled(run_python):
    check_quiet_and_unavailable(run_python, {"ANYMPS_DISABLE": "1"}, built=False)
    report = info_of(run_python, {"ANYMPS_DISABLE": "1"})
    assert "ANYMPS_DISABLE is set" in report.stdout and report.returncode == 1


@pytest.mark.parametrize(
    "call",
    [
        "torch_anymps.profile().__enter__()",
        "torch_anymps.memory.record_history()",
        "torch_anymps.memory.snapshot()",
        "torch_anymps.set_device(0)",
        "torch_anymps.compile_spirv('')",
        "importlib.import_module('torch_anymps.info').device_info()",
        "importlib.import_module('torch_anymps.tune').Tuning().__enter__()",
    ],
)
def test_what_needs_a_device_says_why_there_is_none(run_python, call):
    done = run_python(f"import importlib, torch_anymps; {call}", env={"ANYMPS_DISABLE": "1"})
    assert done.stderr.endswith(
        "RuntimeError: There is no mps device: ANYMPS_DISABLE is set in the environment. Unset ANYMPS_DISABLE.\n"
    )


@pytest.mark.parametrize("arguments", ["'--device'", "'script.py'"])
def test_tuning_without_a_device_is_a_report(run_python, arguments):
    source = f"import sys; sys.argv[1:] = [{arguments}]; from torch_anymps import tune; sys.exit(tune.main())"
    done = run_python(source, env={"ANYMPS_DISABLE": "1"})
    assert (done.returncode, done.stderr) == (1, "") and "What to do: Unset ANYMPS_DISABLE." in done.stdout


def test_autoload_off(run_python):
    off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    check_quiet_and_unavailable(run_python, off, built=False)
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD keeps torch" in info_of(run_python, off).stdout


def test_explicit_import_in_time(run_python, mps):
    source = "import torch, torch_anymps; print(torch.ones(2, device='mps').sum().item())"
    done = run_python(source, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, fresh=True)
    assert (done.stdout, done.stderr) == ("2.0\n", "")


@pytest.mark.parametrize(
    "question",
    [
        "torch.backends.mps.is_available()",
        "torch.accelerator.current_accelerator()",
        "torch.ones(1, requires_grad=True).sum().backward()",
    ],
)
def test_explicit_import_too_late_says_so(run_python, question):
    source = f"""
import warnings, torch
{question}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch_anymps
print(len(caught), caught[0].message, torch.backends.mps.is_available())
x = torch.ones(1, requires_grad=True); (x * 2).sum().backward(); print(x.grad.item())
"""
    done = run_python(source, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 torch_anymps was imported too late")
    assert done.stdout.splitlines()[0].endswith("False")
    assert done.stdout.splitlines()[1] == "2.0"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("torch.__version__ = '2.12.1'", "PyTorch 2.12.1 is installed, and this torch-anymps was built for 2."),
        ("torch.version.hip = '6.4'", "ROCm or XPU build"),
        ("torch.version.cuda = '13.0'; torch.cuda.device_count = lambda: 1", "an NVIDIA GPU is present"),
        ("torch._C._has_mps = True", "Apple's own mps device"),
        (LATE_LOAD + "load.LIBRARY = 'none_{}.so'", "none_2_"),
    ],
    ids=["version", "rocm", "cuda", "apple", "library"],
)
def test_stays_out_of_builds_it_is_not_made_for(run_python, change, reason):
    # Autoload is off while the build of torch is made to look like another one, then called as torch would.
    source = f"""
import torch
{change}
import importlib.metadata, os
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1"
torch._import_device_backends()
import torch_anymps
print(torch_anymps._load.status.loaded, "anymps" in open("/proc/self/maps").read(), torch_anymps._load.status.reason)
print(torch_anymps._load.status.advice)
"""
    done = run_python(source, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert (done.returncode, done.stderr) == (0, "")
    first, advice = done.stdout.splitlines()
    assert first.startswith("False False ") and reason in first
    assert len(advice) > 10


def test_info_names_a_torch_that_was_changed_under_us(run_python):
    source = """
import torch
torch.__version__ = "2.99.1+cu130"
import os, sys
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1"
torch._import_device_backends()
from torch_anymps import info
sys.exit(info.main())
"""
    done = run_python(source, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    first, reason, advice = done.stdout.splitlines()[0], *done.stdout.splitlines()[-2:]
    built = torch_anymps._load.built_for()
    assert done.returncode == 1 and f"for PyTorch {' and '.join(built)}, PyTorch 2.99.1+cu130" in first
    assert "mps is not available: PyTorch 2.99.1+cu130 is installed" in reason and f"{built[-1]}: another" in reason
    assert f"pip install 'torch=={built[-1]}.*' torchvision --index-url" in advice


def test_an_installation_may_serve_several_versions(tmp_path, monkeypatch):
    package = tmp_path / "torch_anymps"
    package.mkdir()
    for name in ("libtorch_anymps_2_9.so", "libtorch_anymps_2_14.so", "libtorch_anymps.so", "libtorch_anymps_x.so"):
        (package / name).touch()
    monkeypatch.setattr(torch_anymps._load, "_package_folders", lambda: [package])
    assert torch_anymps._load.built_for() == ["2.9", "2.14"]
    for version, name in {"2.14.1+cu130": "libtorch_anymps_2_14.so", "2.9.0a0+git": "libtorch_anymps_2_9.so"}.items():
        monkeypatch.setattr(torch, "__version__", version)
        assert torch_anymps._load._find_library(torch) == str(package / name)
    monkeypatch.setattr(torch, "__version__", "2.10.0")
    with pytest.raises(torch_anymps._load._StayOut) as stay_out:
        torch_anymps._load._find_library(torch)
    assert "2.9 and 2.14" in stay_out.value.args[0] and "'torch==2.9.*'" in stay_out.value.args[1]


def test_broken_library_is_a_reason_and_no_error(run_python, tmp_path):
    broken = tmp_path / "libtorch_anymps_2_13.so"
    broken.write_bytes(b"not a library")
    source = f"""
import torch
{LATE_LOAD}
load._find_library = lambda torch: {str(broken)!r}
load.load()
print(load.status.reason)
"""
    done = run_python(source, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Loading failed with OSError")


def test_forked_child(run_python, mps):
    source = """
import os, torch
x = torch.ones(3, device="mps")
x.sum().item()
pid = os.fork()
if pid == 0:
    print(torch.backends.mps.is_available(), flush=True)
    import torch_anymps.info
    torch_anymps.info.main()
    try:
        torch.ones(1, device="mps")
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print("parent", (x + 1).sum().item(), torch.backends.mps.is_available())
"""
    done = run_python(source)
    assert done.stderr == ""
    assert done.stdout.startswith("False\n")
    assert "forked" in done.stdout
    assert "Cannot re-initialize MPS in forked subprocess" in done.stdout
    assert done.stdout.endswith("parent 6.0 True\n")


def test_a_bad_watermark_fails_the_allocation_and_not_the_import(run_python, mps):
    source = """
import torch
for _ in range(2):
    try:
        torch.ones(1, device="mps")
    except RuntimeError as error:
        print(str(error).splitlines()[0])
print(torch.ones(2).sum().item())
"""
    done = run_python(source, env={"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "abc"})
    assert done.stdout.splitlines() == ["invalid high watermark ratio abc"] * 2 + ["2.0"], done.stderr


def test_import_creates_no_vulkan_instance(run_python):
    done = run_python("import torch; print('libvulkan' in open('/proc/self/maps').read())", fresh=True)
    assert done.stdout == "False\n"


def test_replacing_a_kernel_of_autocast_is_silent_and_others_are_warned_of(run_python, mps):
    """PyTorch 2.13 warns of replaced kernels once a process, which is left to whoever replaces another one."""
    ask = """
import torch
kernels = torch._C._dispatch_dump("aten::batch_norm").splitlines()
print([line for line in kernels if line.startswith("AutocastMPS: ")][0].count("batch_norm_autocast.cpp"), flush=True)
"""
    replace = """
import torch
library = torch.library.Library("aten", "IMPL")
library.impl("layer_norm", lambda *a: a[0], "AutocastMPS")
"""
    for env in ({}, NO_DRIVER):
        quiet = run_python("import torch, torch_anymps", env=env, fresh=True)
        assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    assert run_python(ask).stdout == "1\n"
    words = "verriding a previously registered kernel"
    assert (words in run_python(replace).stderr) == (words in run_python(replace, env={"ANYMPS_DISABLE": "1"}).stderr)


def test_info_with_a_device(mps, run_python):
    report = run_python("-m", "torch_anymps.info", fresh=True)
    assert (report.returncode, report.stderr) == (0, "")
    rows = dict(line.split(":", 1) for line in report.stdout.splitlines()[1:])
    assert [v for k, v in rows.items() if k.startswith("Vulkan device") and v.endswith(": chosen")]
    for row in ("device", "vendor", "driver", "Vulkan", "features", "memory heap 0", "kernels", "cache folder"):
        assert rows[row].strip(), row
    assert int(rows["kernels"]) > 0
    assert re.fullmatch(r"Slang v?20\d\d\.\d\S*", rows["torch.compile"].strip())
    assert {"fp16", "bf16", "coopmat", "atomics", "UMA"} <= set(rows["features"].replace(",", " ").split())
    assert rows["patch torch_mps"].strip().startswith("in force")
    assert rows["patch lightning"].strip().startswith("waits")


def test_a_patch_that_does_not_fit_is_left_out_with_its_reason(run_python, mps):
    source = """
import torch
del torch._C._conv_determine_backend_memory_format
import torch_anymps, runpy
runpy.run_module("torch_anymps.info", run_name="__main__")
"""
    done = run_python(source, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert (done.returncode, done.stderr) == (0, "")
    [line] = [line for line in done.stdout.splitlines() if line.startswith("patch torch_convolution:")]
    assert "left out" in line and "AttributeError" in line and "_conv_determine_backend_memory_format" in line


def test_info_says_what_to_install_for_torch_compile(run_python, mps):
    hide = "import sys; sys.modules['slangpy'] = None"
    source = f"{hide}; import runpy; runpy.run_module('torch_anymps.info', run_name='__main__')"
    done = run_python(source)
    assert (done.returncode, done.stderr) == (0, "")
    [line] = [line for line in done.stdout.splitlines() if line.startswith("torch.compile:")]
    assert "Slang compiler, which is not installed: pip install 'torch-anymps[compile]'" in line


def test_the_package_has_what_torch_compile_needs():
    from torch_anymps import _load

    library = _load.package_file(_load.file_for(_load.LIBRARY, torch.__version__)).parent  # installed or build/site
    launcher = _load.file_for(_load.LAUNCHER, torch.__version__)
    ours = ("inductor/__init__.py", "user_kernels/metal/__init__.py", "include/anymps/kernel.h")
    for name in (launcher, "pointwise_table.json", "kernels.bin", *ours):
        assert (library / name).is_file(), name
    shaders = {path.name for path in (library / "shaders" / "lib").glob("*.slang")}
    assert {"inductor.slang", "metal.slang", "math.slang", "dtype.slang", "pointwise_functions.slang"} <= shaders
    requirements = importlib.metadata.requires("torch-anymps") or []
    if requirements:  # build/site has no list of them
        assert any(r.startswith("slangpy") and "compile" in r for r in requirements)


def test_optimum_quanto_builds_no_metal_extension(run_python, mps, tmp_path):
    """Against a stand-in with the module and the names of optimum-quanto's extension."""
    folder = tmp_path / "optimum" / "quanto" / "library" / "extensions" / "mps"
    folder.mkdir(parents=True)
    for package in [folder, *list(folder.parents)[:4]]:
        (package / "__init__.py").touch()
    (folder / "__init__.py").write_text(
        "class Extension:\n"
        "    lib = property(lambda self: 1 / 0)\n"
        "ext = Extension()\n"
        "def unpack_mps(t, bits):\n"
        "    return ext.lib.unpack(t, bits)\n"
    )
    source = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import torch
from optimum.quanto.library.extensions.mps import unpack_mps
packed = torch.tensor([0b11100100, 0b00010010], dtype=torch.uint8, device="mps")
print(unpack_mps(packed, 2).tolist(), unpack_mps(packed, 4).tolist(), unpack_mps(packed, 4).dtype)
"""
    done = run_python(source)
    assert done.stdout == "[0, 2, 1, 0, 2, 1, 3, 0] [4, 2, 14, 1] torch.uint8\n", done.stderr
