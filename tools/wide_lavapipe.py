"""Lifts limits on lanes in a source of Mesa, of vectors (512 bits) and ballots (32 lanes): for tools/wide_lavapipe.sh.

usage: python tools/wide_lavapipe.py FOLDER
Raises SystemExit with a sentence where the source is not as it is known, which is that of Mesa 25.0.
"""

from __future__ import annotations

import pathlib
import re
import sys

GALLIUM = "src/gallium/"
WORDS = "lp_native_vector_width > 1024 ? 2 : 1"
VECTORS = (
    "auxiliary/gallivm/lp_bld_jit_types.c",
    "drivers/llvmpipe/lp_texture_handle.c",
    "drivers/llvmpipe/lp_state_fs.c",
    "drivers/llvmpipe/lp_state_cs.c",
)
LIMITS = {  # file -> (text, what is there instead)
    "auxiliary/gallivm/lp_bld_type.h": ("#define LP_MAX_VECTOR_WIDTH 512", "#define LP_MAX_VECTOR_WIDTH 2048"),
    "auxiliary/gallivm/lp_bld_nir.c": (".ballot_components = 1,", f".ballot_components = {WORDS},"),
    "frontends/lavapipe/lvp_pipeline.c": ("ballot_components = 1;", f"ballot_components = {WORDS};"),
} | dict.fromkeys(VECTORS, ("MIN2(lp_native_vector_width / 32, 16)", "MIN2(lp_native_vector_width / 32, 64)"))
# A ballot of as many words as the instruction has, for one word.
BALLOT = """
   for (unsigned word = 0; word < instr->def.num_components; ++word) {
      LLVMValueRef bits = lp_build_const_int32(gallivm, 0);
      for (unsigned i = 0; i < 32 && word * 32 + i < bld_base->uint_bld.type.length; ++i) {
         LLVMValueRef lane = LLVMBuildExtractElement(builder, src, lp_build_const_int32(gallivm, word * 32 + i), "");
         bits = LLVMBuildOr(builder, bits, LLVMBuildAnd(builder, lane, lp_build_const_int32(gallivm, 1u << i), ""), "");
      }
      result[word] = lp_build_broadcast_scalar(&bld_base->uint_bld, bits);
   }
}
"""


def edit(path: pathlib.Path, change) -> None:
    text = path.read_text() if path.exists() else ""
    changed = change(text)
    if changed == text:
        raise SystemExit(f"{path} is not as Mesa 25.0 has it: tools/wide_lavapipe.py has to follow.")
    path.write_text(changed)


def main() -> None:
    root = pathlib.Path(sys.argv[1]) / GALLIUM
    for name, (old, new) in LIMITS.items():
        edit(root / name, lambda text, old=old, new=new: text.replace(old, new))
    edit(
        root / "frontends/lavapipe/lvp_pipeline.c",
        lambda text: text.replace("\n#include", "\nextern unsigned lp_native_vector_width;\n#include", 1),
    )
    ballot = re.compile(
        r"(static void emit_ballot\(.*?src = LLVMBuildAnd\(builder, src, exec_mask, \"\"\);).*?\n}\n", re.S
    )
    edit(root / "auxiliary/gallivm/lp_bld_nir_soa.c", lambda text: ballot.sub(lambda m: m[1] + BALLOT, text, count=1))


if __name__ == "__main__":
    main()
