# What ./optimus and ./test share: packages, the cache folder, private Python environments, builds.
# Sourced by bash; $root is the checkout. Everything is said on standard error, so that results stay alone on standard
# output.

cache="${OPTIMUS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/optimus-megatron}"

build_packages=(g++ cmake ninja-build pkg-config ccache lld nlohmann-json3-dev libcli11-dev libtomlplusplus-dev
  libfmt-dev libexpected-dev libpcre2-dev libutf8proc-dev libxxhash-dev)
test_packages=(libgtest-dev libbenchmark-dev librapidcheck-dev clang-16 libclang-rt-16-dev clang-format-16 python3
  python3-venv)
# Other people's launchers and stores, which tests start; what is not there is said and left out.
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

# Installs what is missing of the given packages; without root says which line does it.
ensure_packages() {
  command -v dpkg-query >/dev/null || return 0  # not Debian: cmake says what it does not find
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
  # shellcheck disable=SC2086  # a list of words
  { apt-get update -q && apt-get install -q -y --no-install-recommends $missing; } >"$log" 2>&1 </dev/null &
  if ! follow $! "$log" "installing"; then
    tail -n 5 "$log" >&2
    stop "apt-get could not install them (the whole output is in $log)"
  fi
  rm -f "$log"
}

# use_ccache: one compiler cache for all clones. Paths are taken relative to the clone, so that clones share entries.
use_ccache() {
  export CCACHE_DIR="${CCACHE_DIR:-$cache/ccache}" CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1
  export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
}

# follow PID LOG WHAT: waits for a background command and says now and then how far it is, by its log's last line.
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

# torch_of PYTHON: prints the folder of its PyTorch when that is 2.11 or newer. Nothing is imported: that takes seconds.
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
  torch=$(torch_of "$(python_environment torch torch==2.13.0 numpy==2.4.6)") || stop "no PyTorch >= 2.11 could be found or installed"
}

# build PRESET [TARGET…]: configures when needed and builds, one line of progress on a terminal. With $torch set, the half that
# trains is there too.
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

# environment_folder NAME REQUIREMENT…: where a private Python environment with these packages is, or will be; the file
# `complete` in it says that it is there.
environment_folder() {
  local name=$1
  shift
  printf '%s\n' "$cache/venv/$name-$({ python3 --version; printf '%s\n' "$@"; } | sha256sum | cut -c1-12)"
}

# python_environment NAME REQUIREMENT…: prints the python of a private environment with these packages, made once per
# set of requirements. Whoever comes while another makes it waits.
python_environment() {
  local folder log
  folder=$(environment_folder "$@")
  shift
  if [ ! -f "$folder/complete" ]; then
    mkdir -p "$cache/venv"
    exec 8>"$folder.lock"
    flock 8
    if [ ! -f "$folder/complete" ]; then
      say "making a Python environment with $*"
      log="$folder.log"
      rm -rf "$folder"
      { python3 -m venv "$folder" && "$folder/bin/python" -m pip install --disable-pip-version-check "$@" &&
        touch "$folder/complete"; } >"$log" 2>&1 8>&- </dev/null &
      follow $! "$log" "making it" || { tail -n 5 "$log" >&2; stop "pip failed (see $log)"; }
    fi
    exec 8>&-
  fi
  printf '%s\n' "$folder/bin/python"
}
