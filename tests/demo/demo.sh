#!/usr/bin/env bash
# ./dev demo: two trainer processes under crun learn to tell ten shapes apart; one of them is killed a third of the way.
# usage: demo.sh BUILD [--seed N] [--out DIR]
set -euo pipefail
build=$(realpath "$1")
shift
seed=0 out=runs/demo
while [ $# -gt 0 ]; do
    case "$1" in
    --seed) seed=${2:?--seed needs a number} ;;
    --out) out=$(cd "${CALLER:-.}" && realpath -m "${2:?--out needs a folder}") ;;
    *) echo "demo: unknown option '$1'" >&2; exit 2 ;;
    esac
    shift 2
done

epochs=5 batch=64 images=4000
steps=$((epochs * ((images + batch - 1) / batch)))
kill_at=$((steps / 3))
data=$out/data
run=$out/run-$(date +%Y%m%d-%H%M%S)-seed$seed
mkdir -p "$run"
echo "== data: $data"
"$build/worker/trainer" make-data shapes --out "$data" --classes 10 --train-images $images --test-images 1000 \
    --image-size 64 --seed 0

echo "== training: $run"
: >"$run/metrics.jsonl"
# Wait for step kill_at to appear in the metrics (tail -F sleeps until the file grows), then kill rank 1 of this very run.
(
    tail --pid=$$ -n +1 -F "$run/metrics.jsonl" 2>/dev/null | grep -q -m 1 "\"step\":$kill_at\b" || true # tail ends by SIGPIPE
    { # processes come and go while we look
        for p in /proc/[0-9]*; do
            env=$(tr '\0' '\n' <"$p/environ") || continue
            if grep -qx "TORCHELASTIC_RUN_ID=$(basename "$run")" <<<"$env" && grep -qx "RANK=1" <<<"$env"; then
                echo "== kill -9 ${p#/proc/} (rank 1) after step $kill_at of $steps"
                kill -9 "${p#/proc/}"
            fi
        done
    } 2>/dev/null
) &
killer=$!
trap 'kill $killer 2>/dev/null || true' EXIT

set +e
"$build/launcher/crun" --standalone --nproc_per_node 2 --max-restarts 3 --run-id "$(basename "$run")" \
    --log-dir "$run/logs" \
    trainer --train-data "$data/train" --test-data "$data/val" --arch resnet18 --image-size 64 --num-labels 10 \
    --batch-size $batch --num-epochs $epochs --base-learning-rate 0.1 --crop-scale 0.6,1 --amp auto \
    --checkpoint-dir "$run/checkpoints" --checkpoint-every 20 --resume auto --log-dir "$run" --print-freq 20 \
    --seed "$seed" 2>&1 | tee "$run/output"
status=${PIPESTATUS[0]}
set -e
[ "$status" = 0 ] || { echo "demo: crun ended with $status" >&2; exit 1; }

"$build/worker/trainer" plot "$run" --out "$run/plot.png" >/dev/null
accuracy=$(sed -n 's/.* \* Acc@1 \([0-9.]*\) .*/\1/p' "$run/output" | tail -n 1)
restart=$(grep -o 'restart 1/3 .*' "$run/output" || true)
resumed=$(grep -o 'resumed from step [1-9].*' "$run/output" || true)
echo
[ -n "$restart" ] && [ -n "$resumed" ] || { echo "demo: no worker was killed and restarted" >&2; exit 1; }
echo "== $restart"
echo "== $resumed"
echo "== accuracy on 1000 held-out images: $accuracy %"
echo "== plot: $run/plot.png"
echo "== metrics: $run/metrics.jsonl, log: $(ls "$run"/*.log), output of each rank: $run/logs"
awk -v a="$accuracy" 'BEGIN { exit !(a >= 95) }' || { echo "demo: Acc@1 $accuracy is below 95" >&2; exit 1; }
