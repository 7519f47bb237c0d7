#!/usr/bin/env bash
# Every source file is as clang-format would write it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
git ls-files -co --exclude-standard -- '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -r clang-format-16 --dry-run -Werror
