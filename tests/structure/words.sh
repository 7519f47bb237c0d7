#!/usr/bin/env bash
# Checks that the tree has no leftover markers in the code and no absolute home paths.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
found=$(git grep -nIE '\b(TODO|FIXME|XXX|HACK)\b|(^|[^A-Za-z0-9_./])/(home|root)/[a-z]' -- . ':!tests/structure/words.sh')
[ -z "$found" ] || { printf '%s\n' "$found" >&2; exit 1; }
