"""The run-time kernel compiler: Slang source to SPIR-V, its threads and caches."""

from __future__ import annotations

import os
import pathlib
import threading
import time

import pytest
import torch
from kernel_builds import instructions
from slang_fixtures import SCALE, slang_folders, slang_library
from torch._dispatch.python import enable_python_dispatcher

from torch_anymps.inductor import runtime

ops = torch.ops.anymps
pytestmark = pytest.mark.usefixtures("slang")


def source_of(expression: str, imports: str = "import lib.math;") -> str:
    """A kernel that writes an expression of x, one element a thread."""
    return f"""{imports}
struct Args {{ float* a; float* out; int64_t n; }}
[shader("compute")] [numthreads(64, 1, 1)]
void main_kernel(uint3 group_id : SV_GroupID, uint thread : SV_GroupIndex, uniform Args args)
{{
    int64_t i = int64_t(group_id.x) * 64 + thread;
    if (i >= args.n) return;
    float x = args.a[i];
    args.out[i] = {expression};
}}
"""


def words(source: str) -> torch.Tensor:
    return ops.compile_slang(source)


def test_spirv_of_a_source():
    spirv = words(SCALE)
    assert spirv.dtype == torch.int32 and spirv.device.type == "cpu"
    assert spirv[0].item() == 0x07230203 and spirv[1].item() == 0x00010500  # of SPIR-V 1.5
    assert torch.equal(words(SCALE), spirv)


MEMBER_DECORATE, NON_WRITABLE = 72, 24


def without_read_only_members(spirv: torch.Tensor) -> list:
    """What only the build-time compiler may say: the package writes no kernel's arguments, a user might."""
    marked = [MEMBER_DECORATE, NON_WRITABLE]
    found = [[opcode, *operands] for opcode, operands in instructions(spirv)]
    return [i for i in found if [i[0], *i[3:]] != marked]


@pytest.mark.parametrize(("file", "kernel"), [("assert_async", "assert_nonzero"), ("cat", "cat")])
def test_the_same_words_as_the_build_time_compiler(file, kernel):
    source = (pathlib.Path(__file__).parents[2] / "shaders" / f"{file}.slang").read_text()
    spirv = words(source.replace(f"void {kernel}(", "void main_kernel("))
    assert without_read_only_members(spirv) == without_read_only_members(ops.kernel_spirv(kernel))


def test_opening_is_idempotent(slang):
    assert slang and ops.open_slang(slang_library(), slang_folders()) == slang
    with pytest.raises(RuntimeError, match="open in this process already"):
        ops.open_slang("/nonexistent.so", slang_folders())


@pytest.mark.parametrize(
    ("library", "folders", "sentence"),
    [
        ("/nonexistent/libslang.so", [], "The Slang library, which torch.compile needs, cannot be opened: /nonex"),
        ("libm.so.6", [], "libm.so.6 is not a Slang library that torch.compile can use"),
        (None, ["/nonexistent"], "The folder of Slang sources /nonexistent does not exist."),
    ],
)
def test_what_cannot_be_opened_is_said_in_a_sentence(run_python, library, folders, sentence):
    done = run_python(
        f"""import torch
try:
    torch.ops.anymps.open_slang({library or slang_library()!r}, {folders!r})
except RuntimeError as error:
    print(error)
try:
    torch.ops.anymps.compile_slang("")
except RuntimeError as error:
    print(error)
"""
    )
    assert sentence in done.stdout.splitlines()[0], done.stderr
    assert "has not been opened" in done.stdout.splitlines()[-1]


def test_errors_have_the_diagnostics_and_the_numbered_source():
    source = source_of("m::exp(x) + undefined_name")
    for _ in range(2):  # the second one is not compiled again, and raises the same
        with pytest.raises(RuntimeError) as error:
            words(source)
        assert "kernel.slang:9:" in str(error.value) and "undefined_name" in str(error.value)
        assert "\n   9      args.out[i] = m::exp(x) + undefined_name;\n" in str(error.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (SCALE.replace("main_kernel", "other_name"), "no entry point main_kernel"),
        (SCALE.replace("lib.math", "lib.no_such_module"), "no_such_module"),
        (SCALE.replace("float* a;", "float* a; int64_t more[20];"), "192 bytes of uniform parameters"),
        ("RWStructuredBuffer<float> b;\n" + SCALE.replace("args.a[i]", "b[i]"), "uses a descriptor"),
        ("", "no entry point"),
    ],
)
def test_sources_that_are_refused(source, message):
    with pytest.raises(RuntimeError, match=message):
        words(source)
    assert words(source_of("x + 1")).numel() > 0  # the session goes on


def test_sources_are_compiled_once_in_several_threads():
    before = ops.slang_compilations()
    sources = [source_of(f"x * {os.getpid()}.0 + {i}.0") for i in range(6)]
    for source in sources:
        ops.compile_slang_later(source)
    results: list[torch.Tensor] = []

    def collect():
        results.extend(words(source) for source in sources)

    threads = [threading.Thread(target=collect) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 18 and len({tuple(r.tolist()) for r in results}) == 6
    assert ops.slang_compilations() - before <= 6


PRINT = "print(ops.compile_slang(scale).sum().item(), ops.slang_compilations())\n"


def test_other_threads_of_python_run_while_a_kernel_is_compiled():
    """Also under the Python dispatcher, which is on while torch.compile works."""
    ticks, done = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=tick)
    with enable_python_dispatcher():
        # In no cache, and long enough.
        source = source_of(" + ".join(f"exp(x * {i}.{time.time_ns()})" for i in range(100)))
        thread.start()
        before, start = ticks, time.perf_counter()
        runtime.kernel("threads_of_python", (2, 2, 1, (0,), 64), (), source)
        during, seconds = ticks - before, time.perf_counter() - start
    done.set()
    thread.join()
    assert during > 20, (during, seconds)


def test_a_second_process_compiles_nothing(in_new_process):
    first = in_new_process(PRINT).split()
    assert first[1] == "1"
    assert in_new_process(PRINT).split() == [first[0], "0"]


def cached(tmp_path, pattern: str) -> list[pathlib.Path]:
    return sorted((tmp_path / "cache" / "slang").glob(pattern))


def test_a_broken_file_is_compiled_again_and_rewritten(in_new_process, tmp_path):
    total = in_new_process(PRINT).split()[0]
    [file] = cached(tmp_path, "*.spv")
    whole = file.read_bytes()
    file.write_bytes(whole[:-4])
    assert in_new_process(PRINT).split() == [total, "1"]
    assert file.read_bytes() == whole


def test_broken_serialized_modules_give_way_to_the_texts(in_new_process, tmp_path):
    total = in_new_process(PRINT).split()[0]
    [spirv] = cached(tmp_path, "*.spv")
    modules = cached(tmp_path, "modules_*/shaders/lib/*.slang-module")
    assert {"math.slang-module", "dtype.slang-module", "math_core.slang-module"} <= {m.name for m in modules}
    for damaged in ([], modules[::2], modules):  # none: the words are the same from serialized modules
        for module in damaged:
            module.write_bytes(module.read_bytes()[:1000])
        spirv.unlink()
        assert in_new_process(PRINT).split() == [total, "1"]
        assert all(module.stat().st_size > 1000 for module in modules)


BURST = """
sources = [scale.replace("lib.math", "lib.inductor").replace("factor)", f"factor) + {i}.0") for i in range(6)]
for source in sources:
    ops.compile_slang_later(source)
for source in sources:
    ops.compile_slang(source)
print(ops.slang_compilations(), ops.slang_sessions())
"""


def test_kernels_of_a_thread_share_a_session(in_new_process):
    """Which reads the library once, as text or serialized."""
    assert in_new_process(BURST, ANYMPS_COMPILE_THREADS="1").split() == ["6", "1"]
    others = BURST.replace("{i}.0", "{i}.5")
    assert in_new_process(others, ANYMPS_COMPILE_THREADS="1").split() == ["6", "1"]  # from serialized modules


def test_several_threads_share_what_one_has_read_as_text(in_new_process):
    compilations, sessions = map(int, in_new_process(BURST, ANYMPS_COMPILE_THREADS="3").split())
    assert compilations == 6 and sessions <= 3


def test_preparation_is_no_compilation(in_new_process):
    prepare = 'ops.prepare_slang("import lib.inductor;")\n'
    assert in_new_process(prepare + BURST, ANYMPS_COMPILE_THREADS="1").split() == ["6", "1"]


def test_a_preparation_that_fails_is_silent(in_new_process):
    prepare = 'ops.prepare_slang("import lib.nowhere;")\n'
    assert in_new_process(prepare + PRINT, ANYMPS_COMPILE_THREADS="1").split()[1] == "1"


def test_a_folder_that_cannot_be_written_is_no_error(in_new_process, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert in_new_process(PRINT).split()[1] == "1"


def test_a_change_of_the_library_is_another_kernel(run_python, tmp_path):
    folder = tmp_path / "sources"
    folder.mkdir()
    lines = f"""import torch; ops = torch.ops.anymps
ops.open_slang({slang_library()!r}, [{str(folder)!r}])
print(ops.compile_slang({source_of("twice(x)", "import own;")!r}).tolist(), ops.slang_compilations())
"""
    seen = set()
    for body in ("x + x", "x * 3", "x * 3"):
        (folder / "own.slang").write_text(f"public float twice(float x) {{ return {body}; }}")
        done = run_python(lines, env={"ANYMPS_CACHE_DIR": str(tmp_path / "cache")})
        assert done.returncode == 0, done.stderr
        seen.add(done.stdout)
    assert len(seen) == 3  # two kernels; the third comes from the cache: 0 compilations


def test_a_process_ends_while_kernels_are_compiled(in_new_process):
    lines = "for i in range(20): ops.compile_slang_later(scale.replace('args.factor)', f'args.factor) + {i}.0f'))\n"
    assert in_new_process(lines + "print('end')\n") == "end"


def test_a_forked_child_is_told(in_new_process):
    lines = """
import os
ops.compile_slang(scale)
child = os.fork()
if child == 0:
    try:
        ops.compile_slang(scale)
    except RuntimeError as error:
        os._exit(7 if "not been opened" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert in_new_process(lines) == "7"


@pytest.mark.parametrize("value", ["0", "five", "99"])
def test_the_number_of_threads_is_checked(run_python, value):
    lines = f"import torch; torch.ops.anymps.open_slang({slang_library()!r}, {slang_folders()!r})"
    done = run_python(lines, env={"ANYMPS_COMPILE_THREADS": value})
    assert f"ANYMPS_COMPILE_THREADS={value} is no number of threads from 1 to 4" in done.stderr


def test_statistics(in_new_process):
    lines = "print(len(ops.source_statistics('scale', scale, [64])[0]))"
    assert int(in_new_process(lines, ANYMPS_PIPELINE_STATISTICS="1")) >= 0
    assert in_new_process(lines) == "0"
