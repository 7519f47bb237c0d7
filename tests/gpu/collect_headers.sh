#!/usr/bin/env bash
# Copies the header-only libraries that the engine's sources include into a folder, for tests/gpu/build.sh.
# CUDNN_FRONTEND names a folder with cudnn_frontend.h, such as the
# include folder of the Python package nvidia-cudnn-frontend.
set -euo pipefail
mkdir -p "$1"
cp -rL /usr/include/{nlohmann,fmt,tl,toml++,xxhash.h} "$1"
if [ -d /usr/src/googletest/googletest ]; then cp -rL /usr/src/googletest/googletest "$1"; fi
if [ -n "${CUDNN_FRONTEND:-}" ]; then  # its files include each other by paths in a folder with this name
  mkdir -p "$1/cudnn/include"
  cp -rL "$CUDNN_FRONTEND"/cudnn_* "$1/cudnn/include"
fi
