#!/usr/bin/env bash
# All checks of `make lint`: ruff, clang-format, the layers of csrc; clang-tidy over the C++ files named as arguments
# (it needs a configured build folder: build/ or the one in BUILD).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$PWD/${VENV:-.venv}/bin:$PATH"
failed=0
check() { printf '==> %s\n' "$1"; shift; "$@" || failed=1; }

mapfile -t cpp < <(git ls-files 'csrc/*.cpp' 'csrc/*.h' 'tests/cpp/*.cpp' 'tests/cpp/*.h' 'tools/*.cpp')
check "ruff check" ruff check .
check "ruff format" ruff format --check .
check "clang-format" clang-format --dry-run --Werror "${cpp[@]}"
[ ! -e tools/check_structure.py ] || check "structure" python tools/check_structure.py
[ $# = 0 ] || check "clang-tidy" clang-tidy -p "${BUILD:-build}" --quiet "$@"
exit $failed
