#!/usr/bin/env bash
# Builds for Windows from Linux and runs what can be run under Wine: the trials with a real child, and `impasto devices` with what a
# registry may hold and with drivers that go wrong.
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

# Drivers in the registry. Wine's own loader knows no manifests, so a small one stands in for the real one.
drivers="$work/drivers" sources=crates/testkit/src/drivers
mkdir -p "$drivers"
gcc() { x86_64-w64-mingw32-gcc -shared -O1 -Wall -Wextra "$@"; }
gcc -o "$work/vulkan-1.dll" $sources/loader.c -ladvapi32
gcc -o "$drivers/fake_vulkan.dll" $sources/vulkan.c
# The healthy neighbour, which takes no faults, and needs a library that lies beside it.
echo '__declspec(dllexport) int part_of_good(void) { return 1; }' >"$work/part.c"
gcc -o "$drivers/part_of_good.dll" "$work/part.c"
echo 'int part_of_good(void); int (*use_part)(void) = part_of_good;' >"$work/use.c"
gcc -DFAKE_VARIABLE='"FAKE_GOOD"' -o "$drivers/good.dll" $sources/vulkan.c "$work/use.c" "$drivers/part_of_good.dll"
manifest() { printf '{"file_format_version":"1.0.0","ICD":{"library_path":".\\\\%s","api_version":"1.3.0"}}' "$1"; }
manifest fake_vulkan.dll >"$drivers/fake_icd.json"
manifest good.dll >"$drivers/good_icd.json"
for name in stale adapter component; do manifest "gone_$name.dll" >"$drivers/${name}_icd.json"; done
for name in garbled disabled setting; do echo '{ this is not JSON' >"$drivers/${name}_icd.json"; done

key='HKLM\SOFTWARE\Khronos\Vulkan\Drivers'
class='HKLM\SYSTEM\CurrentControlSet\Control\Class'
adapters="$class\\{4d36e968-e325-11ce-bfc1-08002be10318}" components="$class\\{5c4c3332-344d-483c-8739-259e934c9cc8}"
at() { printf 'Z:%s' "${drivers//\//\\}\\$1"; }
reg() { "$wine" reg "$@" /f >/dev/null; }
begin() { # an empty list of drivers, and nothing remembered
    reg delete "$key" 2>/dev/null || true
    (cd "$work" && "$wine" impasto.exe devices --forget >/dev/null)
}
devices() { (cd "$work" && WINEDLLOVERRIDES="$WINEDLLOVERRIDES;vulkan-1=n" timeout 120 "$wine" impasto.exe devices --timeout 30 "$@") | tr -d '\r' | tee "$work/said"; }
says() { for words in "$@"; do grep -qF -- "$words" "$work/said" || { echo "it does not say: $words" >&2; exit 1; }; done; }
never_says() { for words in "$@"; do ! grep -qF -- "$words" "$work/said" || { echo "it says: $words" >&2; exit 1; }; done; }

say "manifests in the registry that are stale, not JSON, disabled, or no manifests at all"
begin
reg add "$key" /v "$(at stale_icd.json)" /t REG_DWORD /d 0
reg add "$key" /v "$(at garbled_icd.json)" /t REG_DWORD /d 0
reg add "$key" /v "$(at disabled_icd.json)" /t REG_DWORD /d 1
reg add "$key" /v "$(at setting_icd.json)" /t REG_SZ /d 'a text that is no number'
reg add "$adapters\\0006" /v VulkanDriverName /t REG_BINARY /d 410042
reg add "$adapters\\0007" /v VulkanDriverName /t REG_SZ /d "$(at adapter_icd.json)"
reg add "$adapters\\Settings" /v VulkanDriverName /t REG_SZ /d "$(at setting_icd.json)"
reg add "$components\\0003" /v VulkanDriverName /t REG_MULTI_SZ /d "$(at component_icd.json)\\0$(at no_such_icd.json)"
devices
says 'stale_icd.json: it names .\gone_stale.dll' 'garbled_icd.json: it is not JSON' 'adapter_icd.json: it names .\gone_adapter.dll' \
    'component_icd.json: it names .\gone_component.dll' 'no_such_icd.json: it cannot be read' 'no installed driver works here' usable
never_says disabled_icd setting_icd
# Adapters come before Vulkan's own key, as in the loader.
order=$(grep -o '[a-z_]*_icd\.json' "$work/said" | tr '\n' ' ')
[[ "$order" = 'adapter_icd.json component_icd.json no_such_icd.json '* ]] || { echo "their order is $order" >&2; exit 1; }
for number in '0006' '0007' 'Settings'; do reg delete "$adapters\\$number"; done
reg delete "$components\\0003"

say "a driver alone that crashes while it is opened: Windows makes an error of that"
begin
reg add "$key" /v "$(at fake_icd.json)" /t REG_DWORD /d 0
FAKE_VULKAN=crash:load-driver devices
says 'fake_vulkan.dll: could not be loaded' 'cpu ' usable

for fault in crash:create-instance throw:create-instance crash:enumerate; do
    say "a driver alone: $fault"
    begin
    reg add "$key" /v "$(at fake_icd.json)" /t REG_DWORD /d 0
    FAKE_VULKAN=$fault devices
    says "in ${fault#*:}, driver fake_vulkan.dll" VK_LOADER_DRIVERS_DISABLE=fake_icd.json 'cpu ' usable
done

say "a driver that crashes beside a healthy one, in the key of an adapter"
begin
reg add "$key" /v "$(at fake_icd.json)" /t REG_DWORD /d 0
reg add "$adapters\\0007" /v VulkanDriverName /t REG_SZ /d "$(at good_icd.json)"
FAKE_VULKAN=crash:create-instance devices
says 'in create-instance, driver fake_vulkan.dll' 'Fake GPU 0' 'seen, not usable yet: use cpu'
FAKE_VULKAN=crash:create-instance devices
FAKE_VULKAN=crash:create-instance devices
says 'it is left alone for now' 'Fake GPU 0'
reg delete "$adapters\\0007"

say "the same, in a loader that hears no variables: nobody is blamed"
begin
reg add "$key" /v "$(at fake_icd.json)" /t REG_DWORD /d 0
reg add "$key" /v "$(at good_icd.json)" /t REG_DWORD /d 0
FAKE_LOADER=deaf FAKE_VULKAN=crash:create-instance devices
says "administrator's rights" 'which of them is to blame is not known' usable
never_says 'Fake GPU' 'driver fake_vulkan.dll' 'driver good.dll'

say "a healthy driver is remembered until its library changes"
begin
reg add "$key" /v "$(at good_icd.json)" /t REG_DWORD /d 0
devices
says 'Fake GPU 0' 'seen, not usable yet: use cpu'
devices --json >/dev/null
says '"from_cache":true'
touch -d '2001-01-01' "$drivers/good.dll"
devices --json >/dev/null
never_says '"from_cache":true'

say "all as it should be"
