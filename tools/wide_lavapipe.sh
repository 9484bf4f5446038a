#!/usr/bin/env bash
# Builds lavapipe with subgroups of up to 64 lanes, where Mesa stops at 16: for tests of the lanes that GPUs have.
#   tools/wide_lavapipe.sh FOLDER    the source of the installed Mesa, from the mirror that apt uses; FOLDER/wide.json
#                                    is for VK_DRIVER_FILES, and LP_NATIVE_VECTOR_WIDTH=2048 asks for 64 lanes of 32 bits
# Needs root and apt (Debian, Ubuntu), 1 GB and some ten minutes. Nothing is done where FOLDER/wide.json is there.
set -euo pipefail

fail() { echo "$*" >&2; exit 1; }

[ $# = 1 ] || fail "usage: tools/wide_lavapipe.sh FOLDER"
mkdir -p "$1"
folder=$(realpath "$1")
patch=$(realpath "$(dirname "$0")/wide_lavapipe.py")
[ ! -e "$folder/wide.json" ] || exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || fail "tools/wide_lavapipe.sh: needs root and apt"
version=$(dpkg-query -W -f '${source:Version}' mesa-vulkan-drivers) || fail "mesa-vulkan-drivers is not installed"
llvm=$(ldconfig -p | grep -oE 'libLLVM-[0-9]+' | grep -oE '[0-9]+' | sort -n | tail -1)

cd "$folder"
packages="bison flex g++ libdrm-dev libelf-dev libexpat1-dev llvm-${llvm:-}-dev pkg-config python3-venv xz-utils zlib1g-dev"
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $packages >apt.log 2>&1 ||
    fail "apt could not install $packages: see $folder/apt.log"
# Sources of what apt knows, in lists of their own.
mkdir -p lists/partial
apt-get indextargets --format '$(SITE) $(RELEASE)' 'Created-By: Packages' | sort -u |
    sed 's|^\(\S*\) \(\S*\)$|deb-src \1 \2 main|' >sources.list
options=(-o "Dir::Etc::SourceList=$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$folder/lists" -o APT::Sandbox::User=root)
apt-get -q "${options[@]}" update >>apt.log 2>&1 || true  # some suites have no sources
apt-get -q "${options[@]}" source --download-only "mesa=$version" >>apt.log 2>&1 ||
    fail "the source of mesa $version is not to be had: see $folder/apt.log"
rm -rf source build
mkdir source
tar -x -C source --strip-components 1 -f mesa_*.orig.tar.*
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
ninja -C build "$library"
printf '{"file_format_version": "1.0.1", "ICD": {"library_path": "%s", "api_version": "1.3.0"}}\n' \
    "$folder/build/$library" >wide.json
