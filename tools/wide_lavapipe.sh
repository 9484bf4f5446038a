#!/usr/bin/env bash
# Builds lavapipe with subgroups of up to 64 lanes, where Mesa stops at 16: for tests of the lanes that GPUs have.
#   tools/wide_lavapipe.sh FOLDER    FOLDER/wide.json is for VK_DRIVER_FILES, and LP_NATIVE_VECTOR_WIDTH=2048 asks for
#                                    64 lanes of 32 bits
# Needs root and apt (Debian 12, Ubuntu 24.04 or later), 1 GB and some ten minutes on a desktop machine; as many
# compilers run as CMAKE_BUILD_PARALLEL_LEVEL says. Nothing is done where FOLDER/wide.json is there.
set -euo pipefail

# The one that tools/wide_lavapipe.py knows, whatever is installed.
mesa=25.0.7
mesa_sha256=592272df3cf01e85e7db300c449df5061092574d099da275d19e97ef0510f8a6
llvms="15 16 17 18 19 20" # that this Mesa builds with

fail() { echo "$*" >&2; exit 1; }

[ $# = 1 ] || fail "usage: tools/wide_lavapipe.sh FOLDER"
mkdir -p "$1"
folder=$(realpath "$1")
patch=$(realpath "$(dirname "$0")/wide_lavapipe.py")
[ ! -e "$folder/wide.json" ] || exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || fail "tools/wide_lavapipe.sh: needs root and apt"

cd "$folder"
apt-get -q update >apt.log 2>&1 || true # what failed matters where a package is not to be had
llvm=
for version in $llvms; do
    apt-cache show "llvm-$version-dev" >/dev/null 2>&1 && { llvm=$version; break; }
done
[ -n "$llvm" ] || fail "apt has llvm-N-dev for none of $llvms: see $folder/apt.log"
packages="bison ca-certificates curl flex g++ libdrm-dev libelf-dev libexpat1-dev llvm-$llvm-dev pkg-config
    python3-venv xz-utils zlib1g-dev"
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $packages >>apt.log 2>&1 ||
    fail "apt could not install $packages: see $folder/apt.log"

# Mesa's own archive, else the mirrors that apt uses.
sources="https://archive.mesa3d.org/mesa-$mesa.tar.xz $(
    apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | sort -u |
        sed "s|/*\$|/pool/main/m/mesa/mesa_$mesa.orig.tar.xz|")"
is_mesa() { echo "$mesa_sha256  mesa.tar.xz" | sha256sum --check --status 2>/dev/null; }
for source in $sources; do
    is_mesa || curl --silent --show-error --fail --location --max-time 600 --output mesa.tar.xz "$source" || true
done
is_mesa || fail "the source of Mesa $mesa is not to be had from $sources"
rm -rf source build
mkdir source
tar -x -C source --strip-components 1 -f mesa.tar.xz
python3 "$patch" source
python3 -m venv tools
tools/bin/pip install -q meson mako ninja packaging pyyaml
printf "[binaries]\nllvm-config = '/usr/lib/llvm-%s/bin/llvm-config'\n" "$llvm" >native.ini
export PATH=$folder/tools/bin:$PATH
off="-Dglx=disabled -Degl=disabled -Dgbm=disabled -Dopengl=false -Dgles1=disabled -Dgles2=disabled -Dzstd=disabled"
# shellcheck disable=SC2086
meson setup build source --native-file native.ini -Dbuildtype=release -Db_ndebug=true -Dvulkan-drivers=swrast \
    -Dgallium-drivers=llvmpipe -Dplatforms= -Dvulkan-layers= -Dvideo-codecs= -Dllvm=enabled -Dllvm-orcjit=false $off \
    >meson.log || fail "meson cannot configure Mesa: see $folder/meson.log"
library=src/gallium/targets/lavapipe/libvulkan_lvp.so
ninja -C build ${CMAKE_BUILD_PARALLEL_LEVEL:+-j "$CMAKE_BUILD_PARALLEL_LEVEL"} "$library" >ninja.log ||
    fail "Mesa could not be built: see $folder/ninja.log"
printf '{"file_format_version": "1.0.1", "ICD": {"library_path": "%s", "api_version": "1.4.0"}}\n' \
    "$folder/build/$library" >wide.json
