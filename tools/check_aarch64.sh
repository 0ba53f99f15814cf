#!/usr/bin/env bash
# The portable path must build where there is no x86: checks the workspace for aarch64, with the standard library that rustup installs for it.
#
#   tools/check_aarch64.sh
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
if [ ! -d "$(rustc --print target-libdir --target $target)" ]; then
    echo "the standard library for $target is missing: rustup target add $target" >&2
    exit 1
fi
RUSTFLAGS="-D warnings" cargo check --workspace --locked --target $target
