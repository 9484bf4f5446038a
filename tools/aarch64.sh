#!/usr/bin/env bash
# Builds for aarch64 on x86-64 with Debian's g++-aarch64-linux-gnu.
#   tools/aarch64.sh sysroot     the target's zstd and the headers of Vulkan and volk, from apt, in build/aarch64/sysroot
#   tools/aarch64.sh torch       PyTorch's aarch64 wheel for the environment's minor version, in build/aarch64/torch-2.13
#   tools/aarch64.sh configure   a build folder, build/aarch64/VENV (for `ninja -C build/aarch64/.venv`)
#   tools/aarch64.sh wheel       the package as a wheel for that PyTorch, in build/aarch64/wheels/VENV
# VENV (default .venv) is an environment of this machine with the same minor version of PyTorch: code is generated here.
# KERNELS_OF (default build/VENV) is this machine's build of the same sources: kernels are the same for all processors.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${VENV:-.venv}
TORCH_INDEX=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
TRIPLET=aarch64-linux-gnu
OUT=$PWD/build/aarch64
SYSROOT=$OUT/sysroot
PACKAGES=(libzstd-dev libvulkan-dev libvulkan-volk-dev)

say() { printf '==> %s\n' "$*"; }
fail() { printf 'aarch64: %s\n' "$*" >&2; exit 1; }

# Another architecture beside apt's own: apt with lists and a status of its own, so that this machine's stay as they are.
foreign_apt() {
    mkdir -p "$OUT"/apt/{lists/partial,archives/partial}
    touch "$OUT/apt/status"
    apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::lists="$OUT/apt/lists" \
        -o Dir::State::status="$OUT/apt/status" -o Dir::Cache="$OUT/apt" -o APT::Sandbox::User=root "$@"
}

sysroot() {
    [ ! -e "$SYSROOT/usr/lib/$TRIPLET/libzstd.a" ] || return 0
    command -v $TRIPLET-g++ >/dev/null || fail "$TRIPLET-g++ is missing: apt install g++-$TRIPLET"
    say "Sysroot with ${PACKAGES[*]} (log: build/aarch64/apt.log)"
    mkdir -p "$OUT/debs"
    { foreign_apt update && (cd "$OUT/debs" && foreign_apt download "${PACKAGES[@]}"); } >"$OUT/apt.log" 2>&1 ||
        { tail -n 20 "$OUT/apt.log" >&2; fail "apt has no arm64 packages here; the whole output is in build/aarch64/apt.log."; }
    local deb
    for deb in "$OUT"/debs/*.deb; do dpkg-deb -x "$deb" "$SYSROOT"; done
}

minor() { "$VENV/bin/python" -c 'import importlib.metadata as m; print(*m.version("torch").split(".")[:2], sep=".")'; }

torch_folder() { echo "$OUT/torch-$(minor)"; }

torch() {
    local folder version wheels=$OUT/wheels-of-torch
    folder=$(torch_folder) version=$(minor)
    [ ! -e "$folder/torch/version.py" ] || return 0
    say "PyTorch $version for aarch64 (log: build/aarch64/pip.log)"
    mkdir -p "$wheels"
    local download=("$VENV/bin/python" -m pip download --progress-bar off --no-deps --only-binary=:all:
        --platform manylinux_2_28_aarch64 --dest "$wheels" "torch==$version.*")
    "${download[@]}" --retries 0 --timeout 30 --index-url "$TORCH_INDEX" >"$OUT/pip.log" 2>&1 ||
        "${download[@]}" >>"$OUT/pip.log" 2>&1 || { tail -n 20 "$OUT/pip.log" >&2; fail "no wheel of PyTorch for aarch64."; }
    # What the linker and the compiler see of it; the CUDA build's own libraries are not among that.
    "$VENV/bin/python" - "$wheels"/torch-"$version"*aarch64.whl "$folder" <<'PY'
import re
import sys
import zipfile

wanted = re.compile(r"torch/(include/.*|version\.py|lib/lib(?!torch_cuda|torch_nvshmem)[^/]*)")
with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if wanted.fullmatch(name)])
PY
}

definitions() {  # CMake's variables as NAME=VALUE, one a line
    printf '%s\n' "CMAKE_TOOLCHAIN_FILE=$PWD/cmake/aarch64.cmake" "ANYMPS_SYSROOT=$SYSROOT" "TORCH_DIR=$(torch_folder)/torch" \
        "ANYMPS_KERNELS_OF=${KERNELS_OF:-$PWD/build/$(basename "$VENV")}" \
        "Python3_INCLUDE_DIR=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
    ! command -v ccache >/dev/null || echo CMAKE_CXX_COMPILER_LAUNCHER=ccache
}

configure() {
    sysroot
    torch
    local settings
    mapfile -t settings < <(definitions)
    PATH="$PWD/$VENV/bin:$PATH" cmake -S . -B "$OUT/$(basename "$VENV")" -G Ninja "${settings[@]/#/-D}" \
        -DPython3_EXECUTABLE="$PWD/$VENV/bin/python"
}

wheel() {
    sysroot
    torch
    local settings folder
    mapfile -t settings < <(definitions)
    folder=$OUT/wheels/$(basename "$VENV")
    rm -rf "$folder"
    say "Building torch-anymps for PyTorch $(minor) on aarch64 (log: build/aarch64/build.log)"
    # The platform's name in the wheel's; merge_wheels.py replaces it by the one that the libraries ask for.
    PATH="$PWD/$VENV/bin:$PATH" _PYTHON_HOST_PLATFORM=linux-aarch64 "$VENV/bin/python" -m pip wheel -v \
        --no-build-isolation --no-deps --wheel-dir "$folder" "--config-settings=build-dir=$OUT/$(basename "$VENV")" \
        "${settings[@]/#/--config-settings=cmake.define.}" . >"$OUT/build.log" 2>&1 ||
        { tail -n 30 "$OUT/build.log" >&2; fail "the build failed; the whole output is in build/aarch64/build.log."; }
}

case ${1:-} in
    sysroot | torch | configure | wheel) "$1" ;;
    *) sed -n '2,8s/^# *//p' "$0" >&2; exit 2 ;;
esac
