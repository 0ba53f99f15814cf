#!/usr/bin/env bash
# Builds for Windows from Linux and runs what can be run under Wine: the trials with a real child, and `impasto devices`.
# What that vouches for and what not is in docs/devices.md.
#
#   tools/wine.sh           installs Wine and mingw on Debian and Ubuntu if they are missing
set -euo pipefail
cd "$(dirname "$0")/.."

target=x86_64-pc-windows-gnu
say() { printf '\n== %s\n' "$*"; }

wine=$(command -v wine64 || command -v wine || ls /usr/lib/wine/wine64 2>/dev/null || true)
if [ -z "$wine" ] || ! command -v x86_64-w64-mingw32-gcc >/dev/null; then
    say "installing Wine and a compiler for Windows"
    as_root=$([ "$(id -u)" = 0 ] || echo sudo)
    $as_root apt-get update -q
    $as_root apt-get install -qy --no-install-recommends wine wine64 gcc-mingw-w64-x86-64
    wine=$(command -v wine64 || command -v wine || ls /usr/lib/wine/wine64)
fi
[ -x /usr/lib/wine/wine64 ] && wine=/usr/lib/wine/wine64
[ -d "$(rustc --print target-libdir --target $target)" ] || rustup target add $target

say "building"
out=${CARGO_TARGET_DIR:-target}/$target/release
cargo build --release --locked --target $target -p impasto
test=$(cargo test --release --locked --target $target -p impasto-device --test trial --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*trial[^"]*\.exe\)".*/\1/p' | tail -1)

# Rust's standard library asks bcryptprimitives.dll for random numbers, which Wine 8 does not have: this does the same.
work=$(mktemp -d)
trap 'WINEPREFIX="$work/prefix" wineserver -k 2>/dev/null || true; sleep 1; rm -rf "$work"' EXIT
cat >"$work/shim.c" <<'C'
#include <stddef.h>
__declspec(dllimport) unsigned char __stdcall SystemFunction036(void *buffer, unsigned long length);
__declspec(dllexport) int __stdcall ProcessPrng(unsigned char *data, size_t length) { return SystemFunction036(data, (unsigned long)length); }
C
x86_64-w64-mingw32-gcc -shared -O1 -o "$work/bcryptprimitives.dll" "$work/shim.c" -ladvapi32
cp "$test" "$work/trial.exe"
cp "$out/impasto.exe" "$work/"

# Wine starts its debugger on a crash, whatever the error mode is, and the exit code is then the debugger's.
export WINEPREFIX="$work/prefix" WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml=;winedbg.exe=d" DISPLAY=
say "$("$wine" --version 2>/dev/null || echo Wine): trials"
# One at a time: Wine starts a process slowly, and deadlines are short.
(cd "$work" && timeout 300 "$wine" trial.exe --test-threads 1)
say "devices"
(cd "$work" && timeout 120 "$wine" impasto.exe devices --timeout 30)
