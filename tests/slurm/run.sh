#!/usr/bin/env bash
# Starts a Slurm cluster of one machine for this test and stops it afterwards: own keys, own ports, own folders, no systemd. Trains on two
# tasks by srun, compares the losses with those of one device, kills a task, and checks that no process survives.
#   sudo apt-get install slurm-wlm munge && sudo tests/slurm/run.sh [optimus]
# docs/use/clusters.md shows its output. Not part of ./test, because the packages install daemons.
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
optimus=${1:-$root/build/release/optimus}
[ "$(id -u)" = 0 ] || { echo "slurm: this test needs root" >&2; exit 1; }
for program in slurmctld slurmd srun munged; do
  command -v $program >/dev/null || { echo "slurm: $program was not found; apt-get install slurm-wlm munge" >&2; exit 1; }
done

folder=$(mktemp -d /tmp/optimus-slurm-XXXXXX)
chmod 755 "$folder"
pids=()
clean_up() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null; done
  sleep 1
  for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null; done
  rm -rf "$folder"
}
trap clean_up EXIT

mkdir -m 700 "$folder/munge"
head -c 1024 /dev/urandom >"$folder/munge/key" && chmod 600 "$folder/munge/key"
munged --foreground --force --key-file="$folder/munge/key" --socket="$folder/munge.socket" --pid-file="$folder/munge/pid" \
  --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" >"$folder/munged.out" 2>&1 &
pids+=($!)
host=$(hostname -s) port=$((20000 + RANDOM % 5000))
mkdir "$folder/state" "$folder/spool"
cat >"$folder/slurm.conf" <<END
ClusterName=optimus
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$port
SlurmdPort=$((port + 1))
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
END
export SLURM_CONF="$folder/slurm.conf"
slurmctld -D -f "$SLURM_CONF" >"$folder/ctld.out" 2>&1 &
pids+=($!)
slurmd -D -f "$SLURM_CONF" -N "$host" >"$folder/d.out" 2>&1 &
pids+=($!)
for _ in $(seq 100); do
  sinfo -h -o %T 2>/dev/null | grep -q idle && break
  sleep 0.2
done
sinfo || { tail "$folder"/*.log "$folder"/*.out >&2; exit 1; }

for i in $(seq 900); do echo "line $i of $((i * 7 % 31)), and so on"; done >"$folder/text.txt"
args=(train --model gpt2 --layers 2 --hidden 32 --heads 2 --seq 24 --batch 6 --lr 1e-2 --sample 0 --threads 1 --precision fp64 --data "$folder/text.txt")
failed=0
expect() { if "${@:2}"; then echo "pass $1"; else echo "FAIL $1"; failed=1; fi; }

"$optimus" "${args[@]}" --steps 6 --run "$folder/one" --devices 1 2>/dev/null
echo '$ srun -n 2 optimus train … --tp 2'
srun -n 2 -O "$optimus" "${args[@]}" --steps 6 --run "$folder/two" --tp 2
expect "srun succeeds" test $? -eq 0
expect "the losses equal those of one device" python3 - "$folder" <<'END'
import json, sys
one, two = ([json.loads(line) for line in open(f"{sys.argv[1]}/{name}/metrics.jsonl")] for name in ("one", "two"))
assert len(one) == len(two) == 6
sys.exit(any(abs(a["loss"] / b["loss"] - 1) > 1e-9 for a, b in zip(one, two)))
END

srun -n 2 -O "$optimus" "${args[@]}" --steps 100000 --run "$folder/killed" --dp 2 2>"$folder/killed.err" &
srun=$!
for _ in $(seq 300); do [ "$(wc -l 2>/dev/null <"$folder/killed/metrics.jsonl")" -gt 3 ] 2>/dev/null && break; sleep 0.1; done
read -r -a tasks < <(python3 -c "import json; print(*[w['pid'] for w in json.load(open('$folder/killed/workers.json'))['workers']])")
start_time=$SECONDS
kill -9 "${tasks[1]}"
for _ in $(seq 600); do kill -0 $srun 2>/dev/null || break; sleep 0.1; done
kill $srun 2>/dev/null
grep -h "optimus: rank" "$folder/killed.err"
expect "the error message names the killed task" grep -q "optimus: rank 1 (process ${tasks[1]} on" "$folder/killed.err"
expect "all tasks end within 30 s" test $((SECONDS - start_time)) -le 30
sleep 2
expect "no task is still running" sh -c "! kill -0 ${tasks[0]} 2>/dev/null"
exit $failed
