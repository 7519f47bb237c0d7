#!/usr/bin/env python3
"""Checks that a folder of src/ includes only itself and the folders before it, so that dependencies point one way
(docs/contribute/folders.md)."""
import pathlib
import re
import sys

PURE = (
    "base tokenizer data model cluster layout plan schedule reshard cost simulate search recovery store checkpoint policy adapt trials"
    " observe rundir elastic settings launch report"
).split()
WITH_TORCH = "comm kernels engine switching inference run".split()
ORDER = PURE + WITH_TORCH + ["api"]
ROOT = pathlib.Path(__file__).resolve().parents[2]

problems, files = [], 0
for path in sorted((ROOT / "src").rglob("*")):
    if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
        continue
    files += 1
    folder = path.relative_to(ROOT / "src").parts[0]
    if folder not in ORDER:
        problems.append(f"{path}: folder {folder} is not in ORDER")
        continue
    for number, line in enumerate(path.read_text().splitlines(), 1):
        quoted = re.match(r'#include "([^"]+)"', line)
        if quoted:
            used = quoted.group(1).split("/")[0]
            if used == "optimus" and folder == "api":
                continue  # the public headers
            if used not in ORDER:
                problems.append(f'{path}:{number}: include "{quoted.group(1)}" needs the name of its folder, as in "base/error.h"')
            elif ORDER.index(used) > ORDER.index(folder):
                problems.append(f"{path}:{number}: {folder} comes before {used} in the order and must not include it")
        if folder in PURE and re.match(r"#include <(ATen|c10|torch)/", line):
            problems.append(f"{path}:{number}: {folder} must not include libtorch")
print("\n".join(problems), file=sys.stderr)
sys.exit(1 if problems or not files else 0)
