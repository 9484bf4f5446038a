#!/usr/bin/env bash
# All checks of `make lint`: ruff, clang-format, the layers of csrc; clang-tidy over the C++ files named as arguments
# (it needs a configured build folder: build/ or the one in BUILD).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$PWD/${VENV:-.venv}/bin:$PATH"
failed=0
check() { printf '==> %s\n' "$1"; shift; "$@" || failed=1; }

# Not by git, which a machine that only runs the checks may lack.
mapfile -t cpp < <(find csrc tests/cpp tools -name '*.cpp' -o -name '*.h' | LC_ALL=C sort)
check "ruff check" ruff check .
check "ruff format" ruff format --check .
check "clang-format" clang-format --dry-run --Werror "${cpp[@]}"
[ ! -e tools/check_structure.py ] || check "structure" python tools/check_structure.py
if [ $# != 0 ]; then
    # clang does not read the headers that g++ precompiled.
    mkdir -p build/clang-tidy
    sed 's/ -Winvalid-pch -include [^ ]*cmake_pch.hxx//' "${BUILD:-build}/compile_commands.json" >build/clang-tidy/compile_commands.json
    check "clang-tidy" clang-tidy -p build/clang-tidy --quiet "$@"
fi
exit $failed
