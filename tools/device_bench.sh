#!/usr/bin/env bash
# How long finding devices takes, as a ratio to `vulkaninfo --summary` in the same run: files in the page cache, our cache empty,
# then from our cache. Medians of many runs that alternate, since machines are noisy.
#
#   tools/device_bench.sh [IMPASTO [ROUNDS]]
set -euo pipefail
impasto=${1:-target/release/impasto}
rounds=${2:-21}
command -v vulkaninfo >/dev/null || { echo "vulkaninfo is missing (Debian: vulkan-tools)" >&2; exit 1; }
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
export XDG_CACHE_HOME=$cache

milliseconds() {
    local begun=$EPOCHREALTIME
    "$@" >/dev/null 2>&1
    echo $(((${EPOCHREALTIME/./} - ${begun/./}) / 1000))
}
seconds_of_survey() { "$impasto" devices --json "$@" | sed 's/.*"seconds":\([0-9.e-]*\)},"version.*/\1/'; }
median() { sort -g | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

for ((i = 0; i < rounds; i++)); do
    milliseconds vulkaninfo --summary >>"$cache/vulkaninfo"
    rm -rf "$cache/impasto"
    milliseconds "$impasto" devices >>"$cache/empty"
    milliseconds "$impasto" devices >>"$cache/program"
    seconds_of_survey >>"$cache/survey"
done
base=$(median <"$cache/vulkaninfo")
echo "vulkaninfo --summary: $base ms"
for what in empty program; do
    awk -v name="$what" -v ms="$(median <"$cache/$what")" -v base="$base" \
        'BEGIN { label = name == "empty" ? "impasto devices, cache empty" : "impasto devices, from the cache"; printf "%s: %d ms, %.2f x\n", label, ms, ms / base }'
done
awk -v s="$(median <"$cache/survey")" -v base="$base" 'BEGIN { printf "the survey in it, from the cache: %.1f ms, %.3f x\n", 1000 * s, 1000 * s / base }'
