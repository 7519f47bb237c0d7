#!/bin/sh
# Fetches the trainers for which plans are exported into FOLDER, once, without their dependencies except those that their configuration
# code imports; PyTorch is that of PYTHON.
# usage: fetch_trainers.sh PYTHON FOLDER
# Exit code 0: done; a package that pip could not fetch has no folder, and the parity test reports that it skips it. 2: usage error.
set -eu
if [ $# -ne 2 ]; then
  echo "usage: fetch_trainers.sh PYTHON FOLDER" >&2
  exit 2
fi
python=$1 folder=$2

# fetch NAME PACKAGE…: into FOLDER/NAME; renamed into place, so that an interrupted run leaves no incomplete folder.
fetch() {
  name=$1
  shift
  [ -d "$folder/$name" ] && return 0
  mkdir -p "$folder"
  partial=$(mktemp -d "$folder/.partial-XXXXXX")
  if DS_BUILD_OPS=0 "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --target "$partial/package" "$@" >"$partial/log" 2>&1; then
    mv "$partial/package" "$folder/$name"
  else
    echo "fetch_trainers: pip could not fetch $name: $(tail -n 1 "$partial/log")" >&2
  fi
  rm -rf "$partial"
}

fetch deepspeed deepspeed==0.19.8 hjson==3.1.0 msgpack==1.1.2 psutil==7.1.3 py-cpuinfo==9.0.0 pydantic==2.12.4 pydantic-core==2.41.5 \
  annotated-types==0.7.0 typing-inspection==0.4.2 einops==0.8.1
fetch torchtitan-0.2 torchtitan==0.2.2 tyro==0.9.35 docstring-parser==0.17.0 shtab==1.7.2 typeguard==4.4.4
fetch torchtitan-0.3 torchtitan==0.3.0 tyro==1.0.16 docstring-parser==0.17.0 shtab==1.7.2 typeguard==4.4.4 spmd-types==0.2.3
fetch megatron megatron-core==0.16.1
