#!/usr/bin/env bash
# The one run command: installs a C linker and Rust where they are missing, builds, and paints.
#
#   tools/run.sh "a red house under a yellow sun by the sea"     writes output.png, or output_2.png if there is one
#   tools/run.sh "a boat" --steps 10 -o boat.png                 flags are those of `impasto generate`
set -euo pipefail
tools=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=tools/setup.sh
. "$tools/setup.sh"

# What is printed to stdout is the picture's name.
setup "" >&2
[ $# -gt 0 ] || set -- "a red house under a yellow sun by the sea"
cargo run --release --locked --manifest-path "$tools/../Cargo.toml" -p impasto -- generate "$@"
