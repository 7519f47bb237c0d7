#!/usr/bin/env bash
# Checks that every source file is formatted by clang-format.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
git ls-files -co --exclude-standard -- '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -r clang-format-16 --dry-run -Werror
