#!/usr/bin/env python3
"""Writes the dispatcher registrations of csrc/ops into a build folder.

    gen_registration.py --ops csrc/ops --out build/generated          write what changed
    gen_registration.py --ops csrc/ops --out build/generated --list   print the files that would be written

Inputs: the markers TORCH_IMPL_FUNC, ANYMPS_ROW, ANYMPS_FUNC and the latter two's forms for sparse tensors in
csrc/ops/*.cpp and csrc/ops/*/*.cpp, and the op tables csrc/ops/<table>.yaml, each read by the module
anymps_codegen.<table>, which has
    outputs() -> list[str]                   every file it writes, relative to the output folder
    families(yaml: Path) -> list[Family]     its operators and texts (see anymps_codegen.registration)
The C shims of operators (anymps_codegen.c_shims) are written beside them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

TABLES = ("pointwise", "reduction", "aten_kernels")


def op_sources(ops: Path) -> list[Path]:
    return sorted([*ops.glob("*.cpp"), *ops.glob("*/*.cpp")])


def stem_of(source: Path, ops: Path) -> str:
    return source.relative_to(ops).with_suffix("").as_posix()


def tables(ops: Path) -> list[tuple[Path, object]]:
    present = [ops / f"{name}.yaml" for name in TABLES if (ops / f"{name}.yaml").exists()]
    return [(path, importlib.import_module(f"anymps_codegen.{path.stem}")) for path in present]


def outputs(ops: Path) -> list[str]:
    from anymps_codegen import c_shims
    from anymps_codegen.registration import family_outputs, registration_outputs

    names = registration_outputs() + c_shims.outputs()
    names += [name for source in op_sources(ops) for name in family_outputs(stem_of(source, ops))]
    for _, module in tables(ops):
        names += module.outputs()
    return names


def generate(ops: Path, out: Path) -> None:
    """Raises CodegenError for a mistake in the sources or tables."""
    from anymps_codegen import c_shims
    from anymps_codegen.markers import entries_of_source
    from anymps_codegen.registration import Family, write_families
    from anymps_codegen.schema import CodegenError, pytorch_schema

    families = []
    for source in op_sources(ops):
        families.append(Family(stem_of(source, ops), entries_of_source(source, str(source), pytorch_schema())))
    for path, module in tables(ops):
        families += module.families(path)
    written = {str(path.relative_to(out)) for path in [*write_families(families, out), *c_shims.write(out)]}
    promised = set(outputs(ops))
    if written != promised:
        raise CodegenError(f"the files written and the files listed differ: {sorted(written ^ promised)}.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=Path, required=True, help="the folder of op sources and tables")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--list", action="store_true", help="print the files, relative to --out, and write nothing")
    arguments = parser.parse_args()
    from anymps_codegen.schema import CodegenError

    try:
        if arguments.list:
            print("\n".join(outputs(arguments.ops)))
        else:
            generate(arguments.ops, arguments.out)
    except CodegenError as error:
        print(f"gen_registration: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
