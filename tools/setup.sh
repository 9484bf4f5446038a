#!/usr/bin/env bash
# Prepares a checkout. Each step is skipped when it is up to date.
#   tools/setup.sh system        system packages; without root and apt it names what is missing and stops
#   tools/setup.sh torch         virtual environment with PyTorch alone
#   tools/setup.sh venv EXTRA    virtual environment with PyTorch and the requirements of an extra of pyproject.toml
#   tools/setup.sh build [tests] our package, built and installed in the virtual environment
#   tools/setup.sh wheel         our package as a wheel for the environment's PyTorch, in build/wheels
# VENV (default .venv) and PYTHON (default python3) choose the environment; TORCH_INDEX=default skips the CPU index.
# TORCH_VERSION (2.15) chooses PyTorch's minor version. Without it an environment keeps the PyTorch that it has, and a
# new one gets the newest for which the index has a build that needs no CUDA packages: those are 4 GB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${VENV:-.venv}
PYTHON=${PYTHON:-python3}
TORCH_INDEX=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
TORCH_VERSION=${TORCH_VERSION:-}
BUILD=build/$(basename "$VENV")
export PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p build

say() { printf '==> %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Runs a command with its output in a log; shows the end of the log when it fails.
logged() {
    local log=$1; shift
    "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; fail "'$*' failed; the whole output is in $log."; }
}

# --- system packages -------------------------------------------------------------------------------
has_file() { local f; for f in "$@"; do [ ! -e "$f" ] || return 0; done; return 1; }
has_header() { has_file {/usr,/usr/local}/include/"$1"; }
# No `ldconfig | grep -q`: grep leaves at the first match, and pipefail then reports ldconfig's SIGPIPE as a failure.
has_loader() { [[ $(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null) == *libvulkan.so.1* ]]; }
has_lavapipe() { has_file /usr/share/vulkan/icd.d/lvp_icd*.json; }
has_layers() { has_file /{usr/share,usr/local/share,etc}/vulkan/explicit_layer.d/VkLayer_khronos_validation.json; }
has_python() { "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; }
has_venv() { "$PYTHON" -c 'import venv, ensurepip'; }
has_python_headers() { "$PYTHON" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'; }
# Bookworm's own Mesa (22.3) works, but its software driver is about 8 times slower than the one of its backports.
has_old_mesa() { [[ $(dpkg-query -W -f '${Version}' mesa-vulkan-drivers 2>/dev/null) == 22.* ]]; }
on_bookworm() { (. /etc/os-release && [ "${VERSION_CODENAME:-}" = bookworm ]) 2>/dev/null; }

# what | test | Debian and Ubuntu | Fedora
REQUIREMENTS='a C++ compiler|command -v g++|g++|gcc-c++
Python 3.10 or newer|has_python|python3|python3
the Python module venv|has_venv|python3-venv|python3
the headers of Python|has_python_headers|python3-dev|python3-devel
the Vulkan loader|has_loader|libvulkan1|vulkan-loader
the headers of Vulkan|has_header vulkan/vulkan.h|libvulkan-dev|vulkan-headers
volk|has_header volk.c|libvulkan-volk-dev|vulkan-volk-devel
zstd|has_header zstd.h|libzstd-dev|libzstd-devel
GoogleTest|has_header gtest/gtest.h|libgtest-dev|gtest-devel
the Vulkan validation layers|has_layers|vulkan-validationlayers|vulkan-validation-layers
the validator of SPIR-V|command -v spirv-val|spirv-tools|spirv-tools
a Vulkan driver (Mesa)|has_lavapipe|mesa-vulkan-drivers|mesa-vulkan-drivers'

missing() {  # prints the rows of REQUIREMENTS that are not met
    local what check debian fedora
    while IFS='|' read -r what check debian fedora; do
        $check >/dev/null 2>&1 || echo "$what|$debian|$fedora"
    done <<<"$REQUIREMENTS"
}

column() { cut -d'|' -f"$1" | sort -u | paste -sd' '; }

apt_get() { DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" </dev/null; }

# Adds bookworm-backports from the mirror that apt already uses for bookworm. Fails where that is not possible.
add_backports() {
    local list=/etc/apt/sources.list.d/bookworm-backports.list targets site key signed=""
    targets=$(apt-get indextargets --format '$(SITE) $(CODENAME)' 'Created-By: Packages')
    ! grep -q ' bookworm-backports$' <<<"$targets" || return 0
    site=$(awk '$2 == "bookworm" { print $1; exit }' <<<"$targets")
    [ -n "$site" ] || return 1
    key=/usr/share/keyrings/debian-archive-keyring.gpg
    [ ! -e "$key" ] || signed="[signed-by=$key] "
    echo "deb ${signed}${site} bookworm-backports main" >"$list"
    apt_get update && return 0
    rm -f "$list"
    return 1
}

install_with_apt() {  # names of packages
    local log=build/apt.log name packages=() mesa=()
    say "System packages: $* (log: $log)"
    logged "$log" apt_get update
    for name in "$@"; do
        if [ "$name" = mesa-vulkan-drivers ] && on_bookworm; then
            if add_backports >>"$log" 2>&1; then
                mesa=(-t bookworm-backports "$name")
                continue
            fi
            say "bookworm-backports does not answer: bookworm's own Mesa is slower, but it works"
        fi
        packages+=("$name")
    done
    [ ${#packages[@]} = 0 ] || logged "$log" apt_get install --no-install-recommends "${packages[@]}"
    [ ${#mesa[@]} = 0 ] || logged "$log" apt_get install --no-install-recommends "${mesa[@]}"
}

setup_system() {
    local rows packages
    [ "$(uname -s)" = Linux ] || fail "torch-anymps runs on Linux; a Mac has PyTorch's own mps device."
    rows=$(missing)
    packages=$(column 2 <<<"$rows")
    # The faster Mesa is asked for once, not at every run.
    if on_bookworm && has_old_mesa && [ ! -e build/no-backports ]; then packages="$packages mesa-vulkan-drivers"; fi
    [ -n "${packages// /}" ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        # shellcheck disable=SC2086
        install_with_apt $packages
        ! has_old_mesa || touch build/no-backports
        rows=$(missing)
        [ -z "$rows" ] || fail "still missing after the installation: $(column 1 <<<"$rows")"
    elif [ -n "$rows" ]; then
        {
            echo "Missing on this machine:"
            cut -d'|' -f1 <<<"$rows" | sed 's/^/  - /'
            echo "They are installed automatically only by root with apt. Please install them, then run this again:"
            echo "  Debian:  sudo apt install $(column 2 <<<"$rows")"
            echo "           (on bookworm, mesa-vulkan-drivers from bookworm-backports is much faster)"
            echo "  Ubuntu:  sudo apt install $(column 2 <<<"$rows")"
            echo "  Fedora:  sudo dnf install $(column 3 <<<"$rows")"
        } >&2
        exit 1
    fi
}

# --- virtual environment ---------------------------------------------------------------------------
# Packages whose compiled part belongs to one build of torch: both come from the same index, in one command.
BESIDE_TORCH='^(torchvision|torchaudio)\b'

# Prints the build requirements of pyproject.toml and those of an extra, one a line, without torch. The extra "build"
# has no more.
requirements() {
    "$VENV/bin/python" - "$@" <<'PY'
import sys

try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
extras = project["project"]["optional-dependencies"]


def expand(names):
    for name in names:
        if name.startswith("torch-anymps["):
            for extra in name[len("torch-anymps[") : -1].split(","):
                yield from expand(extras[extra])
        else:
            yield name


print("\n".join([*project["build-system"]["requires"], *expand(extras.get(sys.argv[1], []))]))
PY
}

beside_torch() { requirements "$1" | grep -E "$BESIDE_TORCH" || true; }

# The versions of torch that are wanted: torch==2.15.*, or all that the package serves.
torch_requirement() {
    if [ -n "$TORCH_VERSION" ]; then
        echo "torch==$TORCH_VERSION.*"
    else
        sed -n 's/^dependencies = \["\(torch[^"]*\)"\]$/\1/p' pyproject.toml
    fi
}

# The installed version of torch, if it is a wanted one.
installed_torch() {
    "$VENV/bin/python" - "$(torch_requirement)" 2>/dev/null <<'PY'
import importlib.metadata
import sys

from pip._vendor.packaging.requirements import Requirement

version = importlib.metadata.version("torch")
sys.exit(version not in Requirement(sys.argv[1]).specifier or print(version))
PY
}

# Wanted builds of torch that need no CUDA packages (their versions end in +cpu), the newest first. Arguments: pip's.
cpu_builds() {
    "$VENV/bin/python" -m pip index versions torch "$@" 2>/dev/null | "$VENV/bin/python" -c '
import re
import sys

from pip._vendor.packaging.requirements import Requirement

wanted = Requirement(sys.argv[1]).specifier
listed = re.findall(r"(?m)^Available versions: (.*)", sys.stdin.read())
builds = [version for line in listed for version in line.split(", ")]
print("\n".join(version for version in builds if version.endswith("+cpu") and version in wanted))
' "$(torch_requirement)"
}

pip_install() { "$VENV/bin/python" -m pip install --progress-bar off "$@"; }

index_answers() {
    "$VENV/bin/python" -c "import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=10)" "$1/torch/" 2>/dev/null
}

has_packages() { "$VENV/bin/python" -m pip show -q "$@" 2>/dev/null; }

# PyTorch's index of CPU builds is asked first. Sets TORCH and TORCH_FROM, pip's arguments, and says why.
choose_torch() {  # packages whose compiled part belongs to one build of torch
    local builds at_hand="" place="the default package index" why="TORCH_VERSION=2.15, say, asks for another"
    TORCH=$(torch_requirement) TORCH_FROM=()
    if [ "$TORCH_INDEX" != default ] && index_answers "$TORCH_INDEX"; then
        TORCH_FROM=(--retries 0 --timeout 30 --index-url "$TORCH_INDEX") place=$TORCH_INDEX
    fi
    builds=$(cpu_builds "${TORCH_FROM[@]}") || true
    # A CPU build that lies at hand (pip's find-links) must not stand in for the default index's build, to which the
    # default index's other packages belong.
    if [ ${#TORCH_FROM[@]} = 0 ] && { [ "$TORCH_INDEX" = default ] || [ $# != 0 ]; }; then
        at_hand=$(sed '/./s/^/,!=/' <<<"$builds" | tr -d '\n') builds=""
    fi
    if [ -n "$builds" ]; then
        TORCH=torch==${builds%%$'\n'*}
        say "$TORCH: the newest build that needs no CUDA packages on $place; $why"
    elif [ -n "$TORCH_VERSION" ] || [ "$TORCH_INDEX" = default ]; then
        say "$TORCH from $place, perhaps with its CUDA packages"
    else
        TORCH=$(sed 's/^torch>=\([0-9.]*\),.*/torch==\1.*/' <<<"$TORCH")
        say "$TORCH: the oldest that is served, as no index has a build that needs no CUDA packages; $why"
    fi
    TORCH=$TORCH$at_hand
}

install_torch() {
    local beside
    mapfile -t beside < <(beside_torch "$1")
    # shellcheck disable=SC2046
    if installed_torch >/dev/null && { [ ${#beside[@]} = 0 ] ||
        has_packages $(printf '%s\n' "${beside[@]}" | sed 's/[^A-Za-z0-9_-].*//'); }; then
        return 0
    fi
    choose_torch "${beside[@]}"
    logged build/torch.log pip_install "${TORCH_FROM[@]}" "$TORCH" "${beside[@]}"
}

make_venv() {
    if ! "$VENV/bin/python" -c '' 2>/dev/null; then
        say "Virtual environment $VENV"
        logged build/venv.log "$PYTHON" -m venv --clear "$VENV"
    fi
}

setup_torch() {
    make_venv
    installed_torch >/dev/null || install_torch build
}

setup_venv() {
    local extra=$1 stamp=$VENV/.anymps-$1 key
    make_venv
    key=$( { requirements "$extra"; torch_requirement; } | sha256sum)
    [ "$(cat "$stamp" 2>/dev/null)" != "$key" ] || ! installed_torch >/dev/null || return 0
    install_torch "$extra"
    say "Python packages: $(requirements "$extra" | paste -sd' ')"
    # shellcheck disable=SC2046
    logged build/pip.log pip_install "torch==$(installed_torch)" $(requirements "$extra")
    echo "$key" >"$stamp"
}

# --- our package -----------------------------------------------------------------------------------
sources() {
    find CMakeLists.txt pyproject.toml cmake csrc shaders torch_anymps tools tests/cpp tests/vulkan_layer -type f ! -name '*.pyc' 2>/dev/null |
        LC_ALL=C sort
}

# Shows the count of compiled files: in place on a terminal, every tenth elsewhere.
progress() {
    local line
    while IFS= read -r line; do
        [[ $line =~ \[([0-9]+)/([0-9]+)\]\ (.*) ]] || continue
        if [ -t 1 ]; then
            printf '\r\033[K    [%s/%s] %s' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "${BASH_REMATCH[3]:0:80}"
        elif ((BASH_REMATCH[1] % 10 == 0 || BASH_REMATCH[1] == BASH_REMATCH[2])); then
            printf '    [%s/%s]\n' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
        fi
    done
    [ ! -t 1 ] || printf '\n'
}

# A compiler that includes PyTorch's headers takes up to 1.2 GB.
parallel_jobs() {
    awk -v cores="$(nproc)" '/MemAvailable/ { n = int($2 / 1200000); print n < 1 ? 1 : n < cores ? n : cores }' /proc/meminfo
}

version_of() { "$VENV/bin/python" -c "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))" "$1"; }

# Runs one of pip's commands on the checkout. KERNELS_OF: a build folder of the same sources with compiled shaders.
pip_build() {  # pip's arguments
    local log=build/build.log settings=("build-dir=$BUILD" "cmake.define.ANYMPS_KERNELS_OF=${KERNELS_OF:-}")
    ! command -v ccache >/dev/null || settings+=(cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache)
    say "Building torch-anymps for PyTorch $(version_of torch) (log: $log)"
    export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(parallel_jobs)}
    PATH="$(cd "$VENV/bin" && pwd):$PATH"
    if ! "$VENV/bin/python" -m pip "$@" -v --no-build-isolation --no-deps "${settings[@]/#/--config-settings=}" . 2>&1 |
        tee "$log" | progress; then
        { grep -nE '(error|Error):' "$log" | head -n 20 || true; tail -n 15 "$log"; } >&2
        fail "the build failed; the whole output is in $log."
    fi
}

build() {
    local tests=OFF stamp=$VENV/.anymps-build key
    [ "${1:-}" != tests ] || tests=ON
    key=$({ echo "$tests $(version_of torch) $(version_of slangpy)"; sources | xargs -d '\n' sha256sum; } | sha256sum)
    [ "$(cat "$stamp" 2>/dev/null)" != "$key" ] || ! version_of torch-anymps >/dev/null 2>&1 || return 0
    pip_build install --progress-bar off --force-reinstall "--config-settings=cmake.define.ANYMPS_BUILD_TESTS=$tests"
    echo "$key" >"$stamp"
}

wheel() {
    local folder
    folder=build/wheels/$(basename "$VENV")
    rm -rf "$folder"
    pip_build wheel --wheel-dir "$folder" --config-settings=cmake.define.ANYMPS_BUILD_TESTS=OFF
}

case ${1:-} in
    system) setup_system ;;
    torch) setup_torch ;;
    venv) setup_venv "${2:?name an extra of pyproject.toml}" ;;
    build) build "${2:-}" ;;
    wheel) wheel ;;
    *) sed -n '2,10s/^# *//p' "$0" >&2; exit 2 ;;
esac
