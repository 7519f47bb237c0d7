#!/usr/bin/env bash
# One run, four plans: 24 layers on 16 workers begin as pp4 x tp2 x dp2, go on with three stages, become copies of the model when batches
# have grown, and lose a worker; what is learned is what one device learns.
#
#   examples/founding.sh OUT_FOLDER
#
# The model is tiny, so that 16 workers fit on a laptop. Here the change to three stages is scripted; on machines of their own a run decides it itself (docs/dynamic.md).
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
optimus=${OPTIMUS:-$root/optimus}
out=$1
mkdir -p "$out"

# Batches of 8, of 16 behind step 10, of 32 behind step 20: each phase has a plan of its own.
for i in $(seq 900); do echo "line $i of $((i * 7 % 31)), and so on"; done > "$out/text.txt"
training=(--model gpt2 --layers 24 --hidden 32 --heads 2 --seq 16 --batch 32 --batch-ramp 8:20 --steps 40 --lr 1e-3 --sample 0 --threads 1
  --precision fp64 --save-every 0 --data "$out/text.txt")
shape=(--model gpt2 --layers 24 --hidden 32 --heads 2 --seq 16 --vocab 257 --precision fp64 --schedule 1f1b --microbatch 2)
"$optimus" plan "${shape[@]}" --batch 8 --cluster cpux16 --pp 4 --tp 2 --dp 2 --zero 0 --export optimus --out "$out/pp4" > "$out/plans.txt"
"$optimus" plan "${shape[@]}" --batch 8 --cluster cpux12 --pp 3 --tp 2 --dp 2 --zero 0 --export optimus --out "$out/pp3" >> "$out/plans.txt"

"$optimus" train "${training[@]}" --devices 1 --run "$out/alone"
"$optimus" train "${training[@]}" --plan "$out/pp4/plan.json" --switch-at "5:$out/pp3/plan.json" --policy never --run "$out/run" &
run=$!

# When ten steps with large batches are done, a worker is lost.
until [ -f "$out/run/metrics.jsonl" ] && [ "$(wc -l < "$out/run/metrics.jsonl")" -ge 30 ]; do
  kill -0 $run 2> /dev/null || break
  sleep 0.05
done
python3 -c 'import json, os, sys; os.kill(json.load(open(sys.argv[1]))["workers"][-1]["pid"], 9)' "$out/run/workers.json"
wait $run
"$optimus" decisions "$out/run"
