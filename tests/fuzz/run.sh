#!/usr/bin/env bash
# run.sh PROGRAM SECONDS: runs one fuzzer for this long, from the committed seeds; prints its output only if it finds something.
set -uo pipefail
program=$1 seconds=$2
name=$(basename "$program")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
seeds="$(dirname "${BASH_SOURCE[0]}")/corpus/${name#fuzz_}"
mkdir -p "$folder/corpus"
[ -d "$seeds" ] && cp "$seeds"/* "$folder/corpus/"
# Temporary files of the program are removed with this folder, however it ends (scratch.h).
if ! TMPDIR="$folder" "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=8192 -artifact_prefix="$folder/" \
  "$folder/corpus" >"$folder/log" 2>&1; then
  tail -n 40 "$folder/log" >&2
  mkdir -p "$(dirname "$program")/findings"
  for found in "$folder"/crash-* "$folder"/timeout-* "$folder"/oom-*; do [ -f "$found" ] && cp "$found" "$(dirname "$program")/findings/" && echo "saved: $(dirname "$program")/findings/$(basename "$found")" >&2; done
  exit 1
fi
