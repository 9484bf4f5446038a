"""tools/check_structure.py finds each kind of violation where it is planted, and nothing elsewhere."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check_structure.py"

CLEAN = {
    "csrc/vulkan/buffer.cpp": '#include "vulkan/buffer.h"\n#include <vulkan/vulkan.h>\n',
    "csrc/compiler/library.cpp": '#include "compiler/library.h"\n#include <dlfcn.h>\n',
    "csrc/kernels/run_time.cpp": '#include "compiler/library.h"\n#include <c10/util/Exception.h>\n',
    "csrc/runtime/stream.cpp": '#include <c10/core/Stream.h>\n\n#include "vulkan/buffer.h"\n',
    "csrc/kernels/launcher.cpp": '#include <anymps/kernels/rows.h>\n#include "runtime/stream.h"\n',
    "csrc/gemm/tiles.h": '#include "kernels/launcher.h"\n',
    "csrc/ops/conv/conv.cpp": '#include "gemm/tiles.h"\n#include "ops/conv/plan.h"\n#include "ops/amax.h"\n',
    "csrc/ops/amax.h": '#include "ops/matmul/mm.h"\n',
    "csrc/ops/matmul/mm.cpp": '#include <anymps/ops/matmul/mm_ops.h>\n#include "kernels/launcher.h"\n',
    "shaders/softmax.slang": "import lib.dtype;\n" * 300,
    "shaders/lib/dtype.slang": "module dtype;\nimport lib.math;\n",
    "shaders/lib/own.slang": "module own;\n",
    "shaders/lib/math.slang": "module math;\n",
    "shaders/lib/shared.slang": "module shared;\n",
    "shaders/sort/sort.slang": "import lib.shared;\n",
    "shaders/cat.slang": "import lib.shared;\n",
    "shaders/lib/generated.slang": "module generated;\n",
    "shaders/sort/other.slang": "import lib.generated;\n",
    "tools/generator.py": 'TEXT = "import lib.generated;\\n"\n',
    "shaders/gemm/tile.slang": '__exported import gemm.operand;\n#include "lib/dtype.slang"\n',
    "shaders/conv/conv.slang": "import conv.walk;\nimport gemm.tile;\n",
    "tools/tool.py": "x = 1\n" * 400,
    "tests/ops/test_a.py": "x = 1\n",
    "tests/conftest.py": "x = 1\n",
    "tests/test_smoke.py": "x = 1\n",
    "csrc/ops/long.cpp": "// " + "x" * 117 + "\n" * 600,
    "csrc/ops/function.cpp": "// Over 80 lines: a table.\ntemplate <int N>\nvoid a()\n{\n" + "\n" * 99 + "}\n",
    "csrc/ops/functions.cpp": "struct A\n{\n" + "void a() const { int b[2] = {0, 1}; }\n" * 99 + "};\n",
    "csrc/ops/table.cpp": "constexpr Row kRows[] = {\n" + "    {1, f(2)},\n" * 99 + "};\n",
    "shaders/pool/pool.slang": "// Over 80 lines: one.\n//! kernel a = b<1>\n[numthreads(64)]\nvoid b()\n{"
    + "\n" * 99
    + "}",
    "tools/long.py": "# Over 80 lines: a table.\n@cached\ndef f():\n" + "    f()\n" * 99,
    "csrc/ops/named.cpp": "// As conv.slang, ops/amax.h, test_a.py, derivatives.yaml, NAME.h, *.h, ATen/Tensor.h.\n",
    "tools/named.py": '"""As vulkan/buffer.cpp."""\nx = \'// nothing.cpp\'\n',
    "csrc/ops/words.cpp": "// Halves of parts, most of them seen. cost of kMostly split_k\n",
}


def run(root, sources):
    for name, text in {**CLEAN, **sources}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return subprocess.run([sys.executable, TOOL, root], capture_output=True, text=True)


def test_a_clean_tree(tmp_path):
    result = run(tmp_path, {})
    assert (result.returncode, result.stdout) == (0, "structure: no violations\n")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("csrc/vulkan/a.h", '#include "runtime/stream.h"', "csrc/vulkan/a.h:1: csrc/vulkan includes runtime/stream.h"),
        ("csrc/runtime/a.h", '\n#include "kernels/launcher.h"', "csrc/runtime/a.h:2: csrc/runtime includes kernels/"),
        ("csrc/kernels/a.cpp", "#include <anymps/ops/fill_ops.h>", "includes anymps/ops/fill_ops.h of csrc/ops"),
        ("csrc/kernels/a.cpp", '#include "../ops/fill.h"', "includes ../ops/fill.h of csrc/ops"),
        ("csrc/runtime/a.cpp", '#  include "ops/fill.h"', "csrc/runtime includes ops/fill.h of csrc/ops"),
        ("csrc/gemm/a.h", '#include "ops/conv/plan.h"', "csrc/gemm includes ops/conv/plan.h of csrc/ops; includes go"),
        ("csrc/ops/conv/a.h", '#include "ops/matmul/mm.h"', "csrc/ops/conv includes ops/matmul/mm.h; what families"),
        ("csrc/vulkan/a.h", "#include <c10/util/Exception.h>", "csrc/vulkan includes c10/util/Exception.h"),
        ("csrc/vulkan/a.h", "#include <ATen/Tensor.h>", "it has no PyTorch headers"),
        ("csrc/vulkan/a.h", '#include "torch/library.h"', "it has no PyTorch headers"),
        ("csrc/compiler/a.h", "#include <c10/util/Exception.h>", "csrc/compiler includes c10/util/Exception.h; it"),
        ("csrc/compiler/a.h", '#include "vulkan/buffer.h"', "of csrc/vulkan; neither knows of the other."),
        ("csrc/vulkan/a.h", '#include "compiler/library.h"', "csrc/vulkan includes compiler/library.h of csrc/"),
        ("csrc/ops/a.cpp", "\n" * 600, "a.cpp:601: the file has 601 lines; .cpp files have at most 600"),
        ("shaders/lib/a.slang", "\n" * 300, "a.slang:301: the file has 301 lines"),
        ("shaders/lib/a.slang", "import conv.walk;", "a.slang:1: shaders/lib imports conv.walk; what several"),
        ("shaders/gemm/a.slang", "import lib.b;\nimport conv.walk;", "a.slang:2: shaders/gemm imports conv.walk"),
        ("shaders/sort/a.slang", "import walk;", "a.slang:1: shaders/sort imports walk; what several families"),
        ("shaders/a.slang", '#include "sort/b.slang"', "a.slang:1: shaders/ imports sort.b; what several"),
        ("shaders/sort/a.slang", "import lib.own;", "own.slang:1: only shaders/sort/a.slang imports it; lib has what"),
        ("shaders/pool/conv.slang", "", "conv.slang:1: shaders/conv/conv.slang has the same name"),
        ("torch_anymps/a.py", "\n" * 400, "a.py:401: the file has 401 lines"),
        ("tests/ops/a.py", "\n" + "#" * 121, "tests/ops/a.py:2: the line has 121 columns, 120 are allowed"),
        ("cmake/a.cmake", "#" * 121, "cmake/a.cmake:1: the line has 121 columns"),
        (
            "csrc/ops/a.cpp",
            "\nplan.part_k = 1;",
            "csrc/ops/a.cpp:2: part_k is not this project's word; docs/glossary.md has",
        ),
        ("shaders/lib/a.slang", "// of HalfRange", "a.slang:1: HalfRange is not this project's word"),
        (
            "tests/ops/a.py",
            'name = "column_sums"',
            "docs/glossary.md has reduce_small_inner, reduce_outer, reduce_nc_hw.",
        ),
        (
            "csrc/ops/a.cpp",
            "constexpr int kMostRows = 1;",
            "kMostRows is not this project's word; docs/glossary.md has kMax",
        ),
        ("tests/runtime/test_a.py", "", "tests/runtime/test_a.py:1: tests/ops/test_a.py has the same name"),
        ("tests/test_b.py", "", "tests/test_b.py:1: files of tests are in folders, which CONTRIBUTING.md lists"),
        ("tests/compare.py", "", "tests/compare.py:1: files of tests are in folders"),
        ("csrc/ops/a.cpp", "\nvoid f()\n{" + "\n" * 80 + "}", "a.cpp:2: the function has 82 lines, at most 80 are"),
        ("csrc/ops/a.h", "A::A() : b_{1}, c_{2} {" + "\n" * 80 + "}", "a.h:1: the function has 81 lines, at most 80"),
        (
            "csrc/ops/a.h",
            "struct A {\nbool operator==(A b) {" + "\n" * 80 + "}\n};",
            "a.h:2: the function has 81 lines",
        ),
        ("shaders/pool/a.slang", "// Why.\n[shader(x)]\nvoid f(){" + "\n" * 80 + "}", "a.slang:3: the function has 81"),
        ("tools/a.py", "class A:\n    def f(self):\n" + "        f()\n" * 80, "a.py:2: the function has 81 lines"),
        ("csrc/ops/a.cpp", "// Why.\n/* As\n   in ops/gone.h. */", "a.cpp:3: the comment names ops/gone.h, which does"),
        ("shaders/lib/a.slang", "int a;  // gone.slang", "a.slang:1: the comment names gone.slang, which does not"),
        ("tools/a.py", 'def f():\n    """F.\n\n    As in gone.yaml"""', "a.py:4: the comment names gone.yaml"),
        ("tools/a.py", "x = 1  # tools/gone.py", "a.py:1: the comment names tools/gone.py, which does not exist"),
        ("csrc/ops/a.yaml", "# ops/gone.md", "csrc/ops/a.yaml:1: the comment names ops/gone.md"),
        ("csrc/ops/a.yaml", "# seldom", "csrc/ops/a.yaml:1: seldom is not this project's word"),
    ],
)
def test_a_planted_violation(tmp_path, name, text, message):
    result = run(tmp_path, {name: text + "\n"})
    assert result.returncode == 1
    assert message in result.stdout
    assert len(result.stdout.splitlines()) == 1
