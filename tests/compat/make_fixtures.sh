#!/usr/bin/env bash
# Writes files of every format that users keep, with the program of a version: make_fixtures.sh OPTIMUS FOLDER.
# The files in v0.1/ were written by version 0.1 and do not change; compat_test.py opens them with the current program.
set -euo pipefail
optimus=$(readlink -f "$1") out=$2
work=/tmp/optimus-fixtures # fixed: settings.toml contains this path, and checkpoints contain its checksum
rm -rf "$work" && mkdir -p "$work" "$out"/{plans,runs,files} && cd "$work"
seq 1 1500 | awk '{print "line " $1 " of " ($1 * 7) % 31 ", and so on"}' > text.txt
"$optimus" data prepare text.txt --out tokens --tokenizer bytes >/dev/null
plan() { local name=$1; shift; "$optimus" plan --export optimus --out "$work/exported" "$@" >/dev/null; cp exported/plan.json "plan-$name.json"; }
small=(--model gpt2 --layers 4 --hidden 16 --heads 2 --vocab 257 --batch 8 --seq 16 --precision fp64)
plan dp4 "${small[@]}" --cluster cpux4 --dp 4 --zero 1
plan pp2tp2 "${small[@]}" --cluster cpux4 --pp 2 --tp 2
plan zero3 "${small[@]}" --cluster cpux4 --dp 4 --zero 3 --mtbf 1m
plan interleaved "${small[@]}" --cluster cpux2 --pp 2 --schedule interleaved --chunks 2
plan large --model llama3-70b --cluster h100x512 --batch 1024 --seq 8192
plan fp8 --model llama3-8b --cluster h100x8 --batch 64 --seq 4096 --precision fp8
train=(train --model gpt2 --layers 4 --hidden 16 --heads 2 --data tokens --tokenizer bytes --batch 8 --seq 16 --precision fp64
  --lr 1e-2 --dropout 0.1 --seed 7 --sample 0 --threads 1)
# Runs of 12 steps. The second half is what a resumed run must reproduce from the checkpoint of step 6.
"$optimus" "${train[@]}" --static --devices 1 --steps 12 --save-every 6 --run one
"$optimus" "${train[@]}" --static --devices 4 --tp 2 --pp 2 --steps 12 --save-every 6 --run four --switch-at 3:plan-zero3.json
"$optimus" simulate --plan plan-large.json --cluster h100x512 --model llama3-70b --json > simulated.json
cat > timeline.json <<'J'
{"format": "optimus-conditions", "version": 1, "length": 600, "conditions": [
  {"cause": "device", "where": 1, "factor": 2, "at": 60, "for": 200}, {"cause": "link", "where": 0, "factor": 3, "at": 300, "for": 60}],
 "losses": [{"where": 2, "at": 400, "for": 90}]}
J
"$optimus" profile --hardware --device cpu --out hardware.json >/dev/null
# A run with adaptation; its observations and decisions are read by replay and decisions.
"$optimus" "${train[@]}" --devices 2 --dp 2 --zero 1 --policy rule --steps 60 --run adaptive
"$optimus" learn --minutes 0.05 --seed 3 --out policy.safetensors >/dev/null
"$optimus" simulate --failures timeline.json --policy rule,learned --learned policy.safetensors --model llama3-8b --cluster h100x32 --batch 128 --seq 4096 --json > policies.json
"$optimus" plan "${small[@]}" --cluster hardware.json --json > planned.json
for run in one four; do
  for step in 6 12; do "$optimus" convert "$run/checkpoints/step-$step" "hf-$run-$step" >/dev/null; done
done
sha256sum hf-*/model.safetensors > exported.sha256
"$optimus" decisions four --json > decisions.json
"$optimus" status four --json > status.json
cp plan-*.json "$out/plans/"
cp -r one four adaptive "$out/runs/"
rm -rf "$out"/runs/*/{tensorboard,logs,checkpoints/step-12,checkpoints/step-60}
cp tokens.bin tokens.idx hardware.json timeline.json policy.safetensors simulated.json policies.json planned.json \
  decisions.json status.json exported.sha256 "$out/files/"
