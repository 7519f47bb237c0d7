#!/usr/bin/env bash
# One run with four plans: 24 layers on 16 workers begin as pp4 x tp2 x dp2, continue with three stages, become replicas of the model
# when batches are large, and lose a worker. The run learns what one device learns.
#
#   examples/founding.sh OUT_FOLDER
#
# The model is tiny, so that 16 workers fit on two cores. The planner chooses the plan for large batches. The first change is scripted here,
# because workers that share two cores do not behave like devices; tests with simulated ranks cover that decision
# (docs/understand/adaptation.md).
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
optimus=${OPTIMUS:-$root/optimus}
out=$1
mkdir -p "$out"

for i in $(seq 900); do echo "line $i of $((i * 7 % 31)), and so on"; done > "$out/text.txt"
shape=(--model gpt2 --layers 24 --hidden 32 --heads 2 --seq 16 --precision fp64)
plan() { "$optimus" plan "${shape[@]}" --vocab 257 "${@:2}" --export optimus --out "$out/$1" >> "$out/plans.txt"; }
plan pp4 --batch 8 --cluster cpux16 --pp 4 --tp 2 --dp 2 --zero 0 --schedule 1f1b --microbatch 1
plan pp3 --batch 8 --cluster cpux12 --pp 3 --tp 2 --dp 2 --zero 0 --schedule 1f1b --microbatch 1
plan large --batch 256 --cluster cpux16

# Batches of 8, and of 256 after step 12: a separate phase, with the plan that the planner chooses for it.
training=("${shape[@]}" --batch 256 --batch-ramp 8,256@12 --steps 20 --lr 1e-3 --lr-schedule constant --warmup 2 --sample 0 --threads 1 --validation 0 --save-every 0 --data "$out/text.txt")
"$optimus" train "${training[@]}" --devices 1 --run "$out/alone"
"$optimus" train "${training[@]}" --plan "$out/pp4/plan.json" --switch-at "6:$out/pp3/plan.json,12:$out/large/plan.json" --policy never --run "$out/run" &
run=$!

# After some steps with large batches, a worker is lost.
until [ -f "$out/run/metrics.jsonl" ] && [ "$(wc -l < "$out/run/metrics.jsonl")" -ge 15 ]; do
  kill -0 $run 2> /dev/null || break
  sleep 0.05
done
python3 -c 'import json, os, sys; os.kill(json.load(open(sys.argv[1]))["workers"][-1]["pid"], 9)' "$out/run/workers.json"
wait $run
"$optimus" decisions "$out/run"
