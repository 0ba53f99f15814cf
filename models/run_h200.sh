#!/usr/bin/env bash
# How the model was trained: four calls on one H200, each below ten minutes, in this order:
#
#   bash models/run_h200.sh smoke    2 to 3 minutes: throughput and memory; fills the compiler's cache
#   bash models/run_h200.sh vae      7.5 minutes
#   bash models/run_h200.sh unet1    9.5 minutes
#   bash models/run_h200.sh unet2    8.5 minutes: the rest, a rough export, the check
#
# Results land in $OUT. Between calls everything needed stays in $SCRATCH on the local disk. If that machine is gone, put the
# files that came back so far into .carry/trained beside models/: training goes on from those. FLAGS adds options of train.py.
set -euo pipefail
cd "$(dirname "$0")"
export PYTHONUNBUFFERED=1
scratch=${SCRATCH:-/tmp/impasto-training}
export TORCHINDUCTOR_CACHE_DIR="$scratch/inductor"
state=$scratch/state
out=${OUT:-out}
mkdir -p "$state" "$out"
unet_minutes=16.8 # both calls together
from=()
if [ -d ../.carry/trained ]; then from=(--from ../.carry/trained); fi

case "${1:-}" in
smoke)
    python3 selftest.py
    timeout 240 python3 train.py smoke --out "$out" ${FLAGS:-}
    ;;
vae)
    python3 train.py vae --minutes 7 --state "$state" --out "$out" "${from[@]}" ${FLAGS:-}
    ;;
unet1)
    python3 train.py unet --minutes 9.2 --minutes-total "$unet_minutes" --state "$state" --out "$out" "${from[@]}" ${FLAGS:-}
    ;;
unet2)
    python3 train.py unet --minutes 7.6 --minutes-total "$unet_minutes" --state "$state" --out "$out" "${from[@]}" ${FLAGS:-}
    rm -f "$out/painter-raw.safetensors" # no more than eight files come back
    [ -e "$state/vae.safetensors" ] && cp "$state/vae.safetensors" "$out" || cp ../.carry/trained/vae.safetensors "$out"
    python3 export.py "$out" "$scratch/model.safetensors"
    python3 check.py eval "$scratch/model.safetensors" --sheet "$out" ${CHECK_FLAGS:-} | tee "$out/check.txt"
    ;;
*)
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
