#!/usr/bin/env bash
# How the model is trained: three calls on one H200, one right after the other (a machine goes back 30 seconds after a call):
#
#   bash models/run_h200.sh vae      7 minutes: 6.4 more for the autoencoder of round one; beside it, the painter is compiled
#   bash models/run_h200.sh unet1    9.2 minutes: the text encoder alone, then with the UNet
#   bash models/run_h200.sh unet2    8.5 minutes: the rest, a rough export, the check
#
# Results land in $OUT, at most eight files a call. Between calls everything needed stays in $SCRATCH on the local disk. Round one's
# vae-raw.safetensors and vae-ema.safetensors are expected in .carry/round1 beside models/. If the machine is gone between two calls,
# put what came back so far into .carry/round2: training goes on from there. FLAGS adds options of train.py.
set -euo pipefail
cd "$(dirname "$0")"
export PYTHONUNBUFFERED=1
scratch=${SCRATCH:-/tmp/impasto-training}
export TORCHINDUCTOR_CACHE_DIR="$scratch/inductor"
state=$scratch/state
out=${OUT:-out}
mkdir -p "$state" "$out"

# Half an hour in all: 7 minutes of round one and these. Start-up and compiling are inside.
vae_minutes=6.4
text_minutes=0.6
unet1_minutes=8.3
unet2_minutes=7.1
vae_total=13.4  # with round one
unet_total=15.4

from=()
if [ -d ../.carry/round2 ]; then from=(--from ../.carry/round2); fi

case "${1:-}" in
vae)
    if [ ${#from[@]} = 0 ]; then
        from=(--from ../.carry/round1)
        [ -e ../.carry/round1/vae-raw.safetensors ] || { echo "round one's autoencoder is not in .carry/round1"; exit 1; }
    fi
    # The compiler works for two minutes on the painter, mostly on the CPU. What it finds stays in its cache for unet1. It begins when the
    # autoencoder is under way, so that it disturbs neither that one's compiling nor the choice of its convolutions.
    rehearsal=$scratch/rehearsal
    mkdir -p "$rehearsal"
    (sleep "${DELAY:-100}" && TORCHINDUCTOR_COMPILE_THREADS=6 nice timeout 300 python3 train.py unet --rehearse --steps 2 --workers 1 --pool 4096 \
        --minutes 5 --state "$rehearsal" --out "$rehearsal" ${UNET_FLAGS:-}) >"$rehearsal/output.txt" 2>&1 &
    compiling=$!
    python3 train.py vae --minutes "$vae_minutes" --minutes-total "$vae_total" --profile 20 --state "$state" --out "$out" "${from[@]}" ${FLAGS:-}
    wait "$compiling" || echo "the rehearsal failed"
    echo "the rehearsal said:"
    tail -n 12 "$rehearsal/output.txt"
    ;;
unet1)
    python3 train.py text --minutes "$text_minutes" --state "$state" --out "$out" "${from[@]}" ${FLAGS:-}
    rm -f "$out"/text-raw.safetensors "$out"/text-ema.safetensors # text.safetensors is what the painter begins with
    python3 train.py unet --minutes "$unet1_minutes" --minutes-total "$unet_total" --profile 20 --state "$state" --out "$out" "${from[@]}" \
        ${UNET_FLAGS:-}
    ;;
unet2)
    python3 train.py unet --minutes "$unet2_minutes" --minutes-total "$unet_total" --state "$state" --out "$out" "${from[@]}" ${UNET_FLAGS:-}
    [ -e "$state/vae.safetensors" ] && cp "$state/vae.safetensors" "$out" || cp ../.carry/round2/vae.safetensors "$out"
    python3 export.py "$out" "$scratch/model.safetensors" --rough
    timeout 90 python3 check.py eval "$scratch/model.safetensors" --sheet "$out" ${CHECK_FLAGS:-} | tee "$out/check.txt"
    ;;
*)
    sed -n '2,14s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
