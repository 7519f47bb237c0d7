#!/usr/bin/env bash
# Copies the header-only libraries that the engine's sources include into a folder, for tests/gpu/build.sh.
set -euo pipefail
mkdir -p "$1"
cp -rL /usr/include/{nlohmann,fmt,tl,toml++,xxhash.h} "$1"
if [ -d /usr/src/googletest/googletest ]; then cp -rL /usr/src/googletest/googletest "$1"; fi
