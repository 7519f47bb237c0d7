#!/usr/bin/env python3
"""The cost of saving for a training run: the demo with and without saves, alternating.

usage: save_slowdown.py PATH_OF_OPTIMUS [--steps 120] [--every 20] [--rounds 3] [arguments of train …]

Prints how much longer a step takes on average between two saves, with its spread, and what one save costs in steps; then how long
training paused and how fast the checkpoint was written, from metrics.jsonl. """
import argparse
import json
import os
import statistics
import subprocess
import tempfile


def run(optimus, folder, steps, every, args):
    command = [optimus, "train", "--steps", str(steps), "--run", folder, "--save-every", str(every), "--sample", "0", "--validation", "0", "--static", "--json", *([] if "--devices" in args else ["--devices", "1"]), *args]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rows = [json.loads(line) for line in open(os.path.join(folder, "metrics.jsonl"))]
    return steps * rows[0]["tokens"] / result["tokens_per_second"], [row["saved"] for row in rows if "saved" in row]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("optimus")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options, args = parser.parse_known_args()
    without, with_saves, saves = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for n in range(options.rounds):
            without.append(run(options.optimus, os.path.join(folder, f"a{n}"), options.steps, 0, args)[0])
            seconds, saved = run(options.optimus, os.path.join(folder, f"b{n}"), options.steps, options.every, args)
            with_saves.append(seconds)
            saves += saved
    ratio = statistics.median(with_saves) / statistics.median(without)
    step = statistics.median(without) / options.steps
    print(f"{options.steps} steps of {1e3 * step:.1f} ms, a save every {options.every}: {100 * (ratio - 1):+.1f} % a step "
          f"({100 * (min(with_saves) / max(without) - 1):+.1f} … {100 * (max(with_saves) / min(without) - 1):+.1f}), one save costs {(ratio - 1) * options.every:.2f} steps")
    medians = {key: statistics.median(s[key] for s in saves) for key in ("pause_seconds", "write_seconds", "bytes")}
    print(f"pause {1e3 * medians['pause_seconds']:.1f} ms, {100 * medians['pause_seconds'] / step:.1f} % of a step; written {medians['bytes'] / 1e6:.1f} MB in "
          f"{1e3 * medians['write_seconds']:.0f} ms, {medians['bytes'] / 1e9 / medians['write_seconds']:.2f} GB/s, medians of {len(saves)} saves")


if __name__ == "__main__":
    main()
