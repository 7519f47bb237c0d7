# Shared by ./optimus and ./test: packages, the cache folder, private Python environments, builds.
# Sourced by bash; $root is the checkout. All messages go to standard error, so that standard output has only results.

cache="${OPTIMUS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/optimus-megatron}"

build_packages=(g++ cmake ninja-build pkg-config ccache lld nlohmann-json3-dev libcli11-dev libtomlplusplus-dev
  libfmt-dev libexpected-dev libpcre2-dev libutf8proc-dev libxxhash-dev)
test_packages=(libgtest-dev libbenchmark-dev librapidcheck-dev clang-16 libclang-rt-16-dev clang-format-16 python3
  python3-venv)
# Launchers and stores of other projects, which tests start; tests of a missing one are skipped with a message.
launcher_packages=(openmpi-bin etcd-server)

say() { printf '%s\n' "optimus: $*" >&2; }
stop() { say "$*"; exit 1; }

# Prints those of the given packages that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || printf '%s ' "$package"
  done
}

# Installs the missing ones of the given packages; without root, prints the command that installs them.
ensure_packages() {
  command -v dpkg-query >/dev/null || return 0  # not Debian: cmake reports missing libraries
  local missing
  missing=$(missing_packages "$@")
  [ -z "$missing" ] && return 0
  missing=${missing% }
  if [ "$(id -u)" != 0 ]; then
    say "missing packages: $missing"
    stop "install them with: sudo apt-get install -y $missing"
  fi
  say "installing $(wc -w <<<"$missing") packages: $missing"
  export DEBIAN_FRONTEND=noninteractive
  local log
  log=$(mktemp)
  # shellcheck disable=SC2086  # a list of package names
  { apt-get update -q && apt-get install -q -y --no-install-recommends $missing; } >"$log" 2>&1 </dev/null &
  if ! follow $! "$log" "installing"; then
    tail -n 5 "$log" >&2
    stop "apt-get failed (its output is in $log)"
  fi
  rm -f "$log"
}

# use_ccache: uses one compiler cache for all clones. Paths are relative to the clone, so that clones share entries.
use_ccache() {
  export CCACHE_DIR="${CCACHE_DIR:-$cache/ccache}" CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1
  export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
}

# follow PID LOG WHAT: waits for a background command and prints the last line of its log every 20 s.
follow() {
  local shown=$SECONDS
  while kill -0 "$1" 2>/dev/null; do
    sleep 0.2
    if [ $((SECONDS - shown)) -ge 20 ]; then
      say "  $3: $(tail -c 300 "$2" | tr '\r' '\n' | grep -av '^ *$' | tail -n 1 | cut -c1-100)"
      shown=$SECONDS
    fi
  done
  wait "$1"
}

# torch_of PYTHON: prints the folder of its PyTorch if that is 2.11 or newer. PyTorch is not imported, because that takes seconds.
torch_of() {
  "$1" - <<'END' 2>/dev/null
import importlib.metadata, importlib.util, re, sys
version = [int(part) for part in re.findall(r"\d+", importlib.metadata.version("torch"))[:2]]
place = importlib.util.find_spec("torch").submodule_search_locations[0]
sys.exit(1) if version < [2, 11] else print(place)
END
}

# use_torch [PYTHON]: sets $torch to a PyTorch to build against: that of PYTHON, of python3, or of a private environment.
use_torch() {
  torch=$(torch_of "${1:-python3}") && return
  torch=$(torch_of "$(python_environment torch torch==2.13.0 numpy==2.4.6)") || stop "PyTorch >= 2.11 was not found and could not be installed"
}

# build PRESET [TARGET…]: configures if necessary, and builds with one line of progress on a terminal. With $torch set, the parts that need
# libtorch are built too.
build() {
  local preset=$1 began=$SECONDS log target targets=()
  shift
  for target in "$@"; do targets+=(--target "$target"); done
  use_ccache
  mkdir -p "$root/build/$preset"
  exec 9>"$root/build/$preset.lock"
  flock 9
  log="$root/build/$preset.log"
  local configured=""
  [ -n "${torch:-}" ] && configured=-DOPTIMUS_TORCH=$torch
  if [ ! -f "$root/build/$preset/build.ninja" ] || { [ -n "$configured" ] && ! grep -qx "OPTIMUS_TORCH:PATH=$torch" "$root/build/$preset/CMakeCache.txt"; }; then
    say "configuring $preset"
    (cd "$root" && cmake --preset "$preset" $configured) >"$log" 2>&1 9>&- </dev/null || { tail -n 20 "$log" >&2; stop "cmake failed (see $log)"; }
  fi
  say "building $preset"
  if [ -t 2 ]; then
    (cd "$root" && NINJA_STATUS='  [%f/%t] ' cmake --build --preset "$preset" "${targets[@]}") >&2 9>&- </dev/null || stop "the build failed"
  else
    (cd "$root" && cmake --build --preset "$preset" "${targets[@]}") >"$log" 2>&1 9>&- </dev/null &
    follow $! "$log" "building $preset" || { grep -E -A5 'error|FAILED' "$log" | head -n 40 >&2; stop "the build failed (see $log)"; }
  fi
  exec 9>&-
  say "built $preset in $((SECONDS - began)) s"
}

# environment_folder NAME REQUIREMENT…: prints the folder of a private Python environment with these packages. The file `complete` in it
# marks an environment that has been created completely.
environment_folder() {
  local name=$1
  shift
  printf '%s\n' "$cache/venv/$name-$({ python3 --version; printf '%s\n' "$@"; } | sha256sum | cut -c1-12)"
}

# python_environment NAME REQUIREMENT…: prints the python of a private environment with these packages, which is created once per set of
# requirements. If another process is creating it, waits for that process.
python_environment() {
  local folder log
  folder=$(environment_folder "$@")
  shift
  if [ ! -f "$folder/complete" ]; then
    mkdir -p "$cache/venv"
    exec 8>"$folder.lock"
    flock 8
    if [ ! -f "$folder/complete" ]; then
      say "creating a Python environment with $*"
      log="$folder.log"
      rm -rf "$folder"
      { python3 -m venv "$folder" && "$folder/bin/python" -m pip install --disable-pip-version-check "$@" &&
        touch "$folder/complete"; } >"$log" 2>&1 8>&- </dev/null &
      follow $! "$log" "creating the environment" || { tail -n 5 "$log" >&2; stop "pip failed (see $log)"; }
    fi
    exec 8>&-
  fi
  printf '%s\n' "$folder/bin/python"
}
