#!/usr/bin/env bash
# Builds the engine's test tool, its benchmark and the check of CUDA kernels on a GPU machine that has
# compilers and PyTorch but none of our other dependencies: calls g++ and nvcc directly, without CMake. Headers
# of header-only libraries come from a folder (created by collect_headers.sh).
#   tests/gpu/build.sh OUT_FOLDER HEADER_FOLDER
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd) headers=$(cd "$2" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
torch=$(python3 -c 'import torch; print(torch.__path__[0])')
cuda=${CUDA_HOME:-/usr/local/cuda}
flags=(-std=c++20 -O2 -DNDEBUG -DOPTIMUS_SOURCE="\"$PWD\"" -fopenmp -DFMT_HEADER_ONLY -DOPTIMUS_CUDA -DAT_PER_OPERATOR_HEADERS -Isrc -Iinclude -Itests -I"$cuda/include"
  -isystem src/comm/gloo_declarations -idirafter "$headers" -idirafter "$torch/include" -idirafter "$torch/include/torch/csrc/api/include")
# cuDNN without copies, if its frontend is among the headers (attention_cudnn.h).
cudnn=$torch/../nvidia/cudnn/include
if [ -d "$headers/cudnn/include" ]; then flags+=(-DOPTIMUS_CUDNN -idirafter "$headers/cudnn/include" -idirafter "$cudnn" -idirafter "$torch/../nvidia/cu13/include"); fi
# NCCL from PyTorch's packages.
nccl=$torch/../nvidia/nccl
if [ -f "$nccl/include/nccl.h" ]; then flags+=(-DOPTIMUS_NCCL -idirafter "$nccl/include"); fi
sources=(src/base/*.cpp src/model/*.cpp src/cluster/*.cpp src/layout/*.cpp src/plan/*.cpp src/schedule/*.cpp src/cost/*.cpp src/simulate/*.cpp src/checkpoint/*.cpp
  src/store/*.cpp src/data/samples.cpp src/data/permutation.cpp src/data/masking.cpp src/data/token_set.cpp src/data/megatron_file.cpp src/comm/*.cpp src/kernels/*.cpp src/engine/*.cpp
  src/switching/memory.cpp src/run/probe_machine.cpp tests/tools/engine_tool.cpp bench/engine_bench.cpp tests/gpu/kernels_check.cpp)
# Complete model folders need tokenizers, whose libraries are missing on such a machine.
for source in "${!sources[@]}"; do
  case ${sources[$source]} in src/checkpoint/hf_folder.cpp | src/checkpoint/hf_tokenizer.cpp) unset "sources[$source]" ;; esac
done
sources=("${sources[@]}")  # without gaps, so that new entries are appended
# If GoogleTest's sources are among the headers, also the engine's own tests (OPTIMUS_TEST_DEVICE=cuda).
if [ -d "$headers/googletest" ]; then
  flags+=(-I"$headers/googletest/include" -I"$headers/googletest")
  sources+=("$headers/googletest/src/gtest-all.cc" "$headers/googletest/src/gtest_main.cc")
  # Except tests that need rapidcheck, which is missing on such a machine.
  mapfile -t -O "${#sources[@]}" sources < <(grep -L rapidcheck tests/engine/*_test.cpp)
fi
# Machine code for Hopper, and PTX for all GPUs since Ampere.
device_flags=(-std=c++20 -O3 -DNDEBUG -Isrc -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_80,code=compute_80)
device_sources=(src/kernels/*.cu)
compile() {
  local object
  object="$out/$(tr / _ <<<"$1").o"
  [ "$object" -nt "$1" ] && [ "$object" -nt "$newest" ] && return
  "${@:2}" -c "$1" -o "$object" || { echo "failed: $1" >&2; return 1; }
}
export -f compile
mapfile -t by_age < <(ls -t src/*/*.h src/*/*.cuh tests/*/*.h)
export out newest=${by_age[0]}  # objects older than the newest header are recompiled
printf '%s\n' "${device_sources[@]}" |
  xargs -P "$(nproc)" -I{} bash -c 'compile "$@"' _ {} "$cuda/bin/nvcc" "${device_flags[@]}" &
device=$!
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -I{} bash -c 'compile "$@"' _ {} g++ "${flags[@]}"
wait "$device"
blas=$(ls "$torch"/../nvidia/cu*/lib/libcublasLt.so.* "$cuda"/lib64/libcublasLt.so.* 2>/dev/null | head -1)
if [ -f "$nccl/include/nccl.h" ]; then blas_and_nccl=("$blas" "$nccl/lib/libnccl.so.2" -Wl,-rpath,"$nccl/lib"); else blas_and_nccl=("$blas"); fi
libraries=("${blas_and_nccl[@]}" -L"$torch/lib" -Wl,--no-as-needed -ltorch_cuda -lc10_cuda -ltorch_cpu -lc10 -ltorch -Wl,--as-needed
  -L"$cuda/lib64" -lcudart -ldl -fopenmp -lpthread -Wl,-rpath,"$torch/lib" -Wl,-rpath,"$(dirname "$blas")")
for program in tests/tools/engine_tool bench/engine_bench tests/gpu/kernels_check; do
  main="$out/$(tr / _ <<<"$program").cpp.o"
  mapfile -t objects < <(ls "$out"/src_*.o | grep -v "src_checkpoint_hf_\(folder\|tokenizer\)")
  g++ -o "$out/$(basename "$program")" "$main" "${objects[@]}" "${libraries[@]}"
done
if [ -d "$headers/googletest" ]; then
  g++ -o "$out/test_engine" "$out"/tests_engine_*.o "$out"/*gtest*.o "${objects[@]}" "${libraries[@]}"
fi
