#!/usr/bin/env bash
# Dependencies as deny.toml wants them: by cargo-deny where it is installed, else what of it a script can check. Advisories where cargo-deny has
# fetched them once (`cargo deny fetch`); a test does not.
set -euo pipefail
cd "$(dirname "$0")/.."
if cargo deny --version >/dev/null 2>&1; then
    cargo deny --locked check licenses bans sources
    if compgen -G "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs/advisory-db-*" >/dev/null; then
        cargo deny --offline check advisories
    else
        echo "advisories: not checked, cargo-deny has none here (cargo deny fetch)"
    fi
else
    python3 tools/check_deps.py
fi
