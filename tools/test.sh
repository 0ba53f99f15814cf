#!/usr/bin/env bash
# The one test command: installs what a bare Debian or Ubuntu machine lacks, then checks everything.
#
#   tools/test.sh           formatting, dependencies, lints, documentation, tests: a quarter of an hour on two cores with nothing built
#   tools/test.sh --long    the long trials alone: tests called `long`, which the other run leaves out
set -euo pipefail
cd "$(dirname "$0")/.."
long=
case "$*" in
    "") ;;
    --long) long=yes ;;
    *)
        sed -n '/^#   /s/^#   //p' "$0" >&2
        exit 2
        ;;
esac

# shellcheck source=tools/setup.sh
. tools/setup.sh

# A C++ compiler, with which tests build drivers that go wrong; a Vulkan driver that works everywhere, beside which they go wrong and on
# which kernels run; a layer that watches it; and what the kernel compiler is tested with.
missing=()
command -v c++ >/dev/null || missing+=(build-essential)
ls /usr/share/vulkan/icd.d/lvp_icd*.json >/dev/null 2>&1 || missing+=(mesa-vulkan-drivers)
# Where ldconfig is, which is not on the PATH of an ordinary user.
{ PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null || true; } | grep -q 'libvulkan\.so\.1' || missing+=(libvulkan1)
ls /usr/share/vulkan/explicit_layer.d/*khronos_validation* >/dev/null 2>&1 || missing+=(vulkan-validationlayers)
command -v spirv-val >/dev/null || missing+=(spirv-tools)
command -v spirv-cross >/dev/null || missing+=(spirv-cross)
command -v glslc >/dev/null || missing+=(glslc)
# A browser that looks at the page, and its driver.
{ command -v chromium && command -v chromedriver; } >/dev/null || missing+=(chromium chromium-driver)
# A virtual environment of Python, for NVIDIA's assembler and for clients of the server.
{ [ -n "${IMPASTO_PTXAS:-}" ] && [ -n "${IMPASTO_CLIENTS_PYTHON:-}" ]; } || python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
setup "clippy fmt" "${missing[@]}"
# NVIDIA's assembler, which looks at every PTX module; from PyPI, into a virtual environment outside of the repository that later runs find again.
# Without it those tests fail. IMPASTO_PTX_TARGETS=all makes them try every target.
if [ -z "${IMPASTO_PTXAS:-}" ]; then
    tools="${XDG_CACHE_HOME:-$HOME/.cache}/impasto-test/ptxas-13"
    find_ptxas() { find "$tools" -path '*/nvidia/*/bin/ptxas' -type f 2>/dev/null | head -n 1; }
    if [ -z "$(find_ptxas)" ]; then
        say "installing ptxas"
        python3 -m venv "$tools"
        "$tools/bin/pip" install --quiet --no-deps 'nvidia-cuda-nvcc>=13,<14'
    fi
    IMPASTO_PTXAS=$(find_ptxas)
    export IMPASTO_PTXAS
fi
"$IMPASTO_PTXAS" --version | tail -n 1
# Clients of the server that nobody here wrote, in the same way.
if [ -z "${IMPASTO_CLIENTS_PYTHON:-}" ]; then
    clients="${XDG_CACHE_HOME:-$HOME/.cache}/impasto-test/clients-1"
    if ! "$clients/bin/python" -c 'import openai, webuiapi' 2>/dev/null; then
        say "installing openai and webuiapi"
        python3 -m venv "$clients"
        "$clients/bin/pip" install --quiet 'openai>=3,<4' 'webuiapi>=0.9,<1'
    fi
    export IMPASTO_CLIENTS_PYTHON="$clients/bin/python"
fi

has_nextest() { cargo nextest --version >/dev/null 2>&1; }

# run_tests [TARGETS] [FILTER]: those of these test programs, or all; with a filter the ignored ones that it names.
run_tests() {
    local targets=${1:-} filter=${2:-}
    if has_nextest; then
        # shellcheck disable=SC2086
        cargo nextest run --workspace --locked --no-fail-fast $targets ${filter:+--run-ignored only "$filter"}
    else
        # shellcheck disable=SC2086
        cargo test --workspace --locked --no-fail-fast $targets ${filter:+-- --ignored "$filter"}
    fi
}

if [ -n "$long" ]; then
    say "long trials"
    run_tests --tests ::long
    # Every case of every op on a software device, of which the short run tries some.
    IMPASTO_ALL_CASES=1 run_tests "--test vulkan"
    say "all is well"
    exit
fi

say "formatting"
cargo fmt --all --check

say "dependencies"
tools/check_deps.sh

# Tests have faults, so that devices and disks can fail on purpose (`faults` under [dev-dependencies]); a release has nothing of them.
say "what is released"
cargo check --locked -p impasto
if cargo tree --locked -p impasto -e normal,build | grep impasto-faults; then
    echo "a release would contain faults" >&2
    exit 1
fi

say "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

say "lints"
cargo clippy --workspace --all-targets --locked -- -D warnings

say "tests"
run_tests
! has_nextest || cargo test --workspace --locked --doc

say "all is well"
