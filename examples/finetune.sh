#!/usr/bin/env bash
# Continues training a Hugging Face folder on your documents: from text to a folder that from_pretrained opens.
#
#   examples/finetune.sh MODEL_FOLDER DOCUMENTS OUT_FOLDER [more options of `optimus train`]
#
# DOCUMENTS: a text file, a jsonl file or a folder of them. The result is OUT_FOLDER/run/export.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
optimus=${OPTIMUS:-$root/optimus}
model=$1 documents=$2 out=$3
shift 3

# Uses the model's own tokenizer; without one, bytes are the tokens.
tokenizer=bytes
[ -f "$model/tokenizer.json" ] && tokenizer=$model/tokenizer.json

# Converts the documents to token files once, without empty documents and duplicates.
mkdir -p "$out"
"$optimus" data prepare "$documents" --out "$out/tokens" --tokenizer "$tokenizer" --min-tokens 4 --dedup

# Starts from the folder's weights. Other settings are chosen automatically, including a small learning rate for continued training.
"$optimus" train --model "$model" --data "$out/tokens" --run "$out/run" --steps 200 --batch 8 --export hf "$@"

echo "before: $("$optimus" eval --model "$model" --data "$out/tokens")"
echo "after:  $("$optimus" eval --model "$out/run/export" --data "$out/tokens")"
"$optimus" generate --model "$out/run/export" --prompt "" --tokens 60
