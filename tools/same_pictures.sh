#!/usr/bin/env bash
# Whether this tree makes the same pictures, to the bit, as another commit: both programs are built and run on this machine, on the default model
# and the tests' models of Stable Diffusion 1, 2 and XL, on the CPU in f32 and bf16 and on a Vulkan device in f32 and in its own precision.
#
#   tools/same_pictures.sh COMMIT [DEVICE]      DEVICE: vulkan0, or none for the CPU only
set -euo pipefail
cd "$(dirname "$0")/.."
commit=${1:?usage: tools/same_pictures.sh COMMIT [DEVICE]} device=${2:-vulkan0}
work=target/same_pictures
mkdir -p "$work"

git worktree list --porcelain | grep -q "$work/before$" && git worktree remove --force "$work/before"
git worktree add --quiet --detach "$work/before" "$commit"
trap 'git worktree remove --force "$work/before"' EXIT
(cd "$work/before" && CARGO_TARGET_DIR=../before-build cargo build --release --locked --quiet --bin impasto)
cargo build --release --locked --quiet --bin impasto
cargo run --release --locked --quiet -p impasto-generate --example test_models -- "$work/models" sd1 sd2 xl >/dev/null

# The size and pixels of a PNG, without what it says of itself.
pixels() {
    python3 -c '
import hashlib, sys
data, at, kept = open(sys.argv[1], "rb").read(), 8, hashlib.sha256()
while at < len(data):
    length = int.from_bytes(data[at:at + 4], "big")
    if data[at + 4:at + 8] in (b"IHDR", b"IDAT"):
        kept.update(data[at + 8:at + 8 + length])
    at += 12 + length
print(kept.hexdigest())' "$1"
}

same=0 differ=0
# compare NAME FLAG...: the picture of both programs.
compare() {
    local name=$1
    shift
    for program in "$work/before-build/release/impasto" target/release/impasto; do
        local out
        out="$work/$name-$([ "$program" = target/release/impasto ] && echo after || echo before).png"
        if ! "$program" generate -p "a red house under a yellow sun" -n "blurry" --seed 7 --steps 3 -o "$out" --force "$@" 2>"$out.log"; then
            echo "$name: $program failed"
            cat "$out.log"
            differ=$((differ + 1))
            return
        fi
    done
    if [ "$(pixels "$work/$name-before.png")" = "$(pixels "$work/$name-after.png")" ]; then
        same=$((same + 1))
    else
        echo "$name: the pictures differ: $work/$name-before.png, $work/$name-after.png"
        differ=$((differ + 1))
    fi
}

for model in default sd1 sd2 xl; do
    flags=(-W 128 -H 128)
    [ "$model" = default ] && flags=() || flags+=(-m "$work/models/$model")
    for type in f32 bf16; do
        compare "$model-cpu-$type" --backend cpu --precision "$type" "${flags[@]}"
        IMPASTO_CPU=portable compare "$model-portable-$type" --backend cpu --precision "$type" "${flags[@]}"
    done
    [ "$device" = none ] && continue
    for type in f32 auto; do
        compare "$model-$device-$type" --backend "$device" --precision "$type" "${flags[@]}"
    done
done
echo "$same passed, $differ failed"
[ "$differ" = 0 ]
