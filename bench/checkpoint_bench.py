#!/usr/bin/env python3
"""Saving and loading a training state: our program compared with Python's safetensors and torch.save, in GB/s, with ratio and spread.

usage: checkpoint_bench.py PATH_OF_BENCH_CHECKPOINT FOLDER [--mebibytes 768] [--rounds 5] [--json FILE]

Run with a Python that has torch and safetensors (the Python environment of ./test). All sides use the same bytes (square fp32 matrices,
three for each tensor) and the same folder, alternate, and run in separate processes. Files are removed between runs and the disk is
synced before each, so that no run pays for the bytes of another. Ratios are of medians (above 1: ours is faster); the spread is from the
worst and the best pairing of rounds. Loads write to existing memory, as parameters are: ours reads into it, the others are copied into
it, and files are in the page cache. "synced" means that the bytes are on the disk when the save returns: our program always does that in
a run; for Python's libraries, which do not, fsync is called afterwards. """
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

PYTHON = r"""
import os, sys, time, torch
from safetensors.torch import load_file, save_file
library, action, path, mebibytes, sync = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "sync"
torch.set_num_threads(2)
count = mebibytes // 12 * 12 // 4
base = torch.arange(1024 * 1024, dtype=torch.float32).view(1024, 1024) * 1e-7
state = {f"{('master', 'first', 'second')[i % 3]}.layers.{i // 3}.weight": base + i for i in range(count)}
began = time.perf_counter()
if action == "save":
    save_file(state, path) if library == "safetensors" else torch.save(state, path)
    if sync:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
else:
    loaded = load_file(path) if library == "safetensors" else torch.load(path)
    for name, value in state.items():
        value.copy_(loaded[name])
print(time.perf_counter() - began)
"""


def ours(options, action, mode):
    os.sync()
    args = [options.program, action, options.folder, str(options.mebibytes)] + ([mode] if mode else [])
    return float(subprocess.run(args, check=True, capture_output=True, text=True).stdout)


def theirs(options, library, action, sync):
    os.sync()
    args = [sys.executable, "-W", "ignore", "-c", PYTHON, library, action, os.path.join(options.folder, "theirs"), str(options.mebibytes), sync]
    return float(subprocess.run(args, check=True, capture_output=True, text=True).stdout)


def one_round(options):
    clear = lambda: [shutil.rmtree(p, ignore_errors=True) if os.path.isdir(p) else os.remove(p) for p in (os.path.join(options.folder, n) for n in os.listdir(options.folder))]
    seconds = {}
    for sync in ("sync", "nosync"):
        for library in ("safetensors", "torch"):
            clear()
            seconds[f"save {sync} {library}"] = theirs(options, library, "save", sync)
            if sync == "nosync":
                seconds[f"load {library}"] = theirs(options, library, "load", sync)
        clear()
        seconds[f"save {sync} ours"] = ours(options, "save", sync if sync == "nosync" else "")
    seconds["load ours"] = ours(options, "load", "")
    seconds["load ours, sums not checked"] = ours(options, "load", "nosum")
    clear()
    return seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program"), parser.add_argument("folder")
    parser.add_argument("--mebibytes", type=int, default=768), parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    options.folder = os.path.join(options.folder, f"checkpoint-bench-{os.getpid()}")
    os.makedirs(options.folder)
    try:
        rounds = [one_round(options) for _ in range(options.rounds)]
    finally:
        shutil.rmtree(options.folder)
    gigabytes = options.mebibytes // 12 * 12 * 2**20 / 1e9
    all_seconds = {name: [r[name] for r in rounds] for name in rounds[0]}
    for name, values in all_seconds.items():
        print(f"{name:<30} {gigabytes / statistics.median(values):6.2f} GB/s   ({gigabytes / max(values):.2f} to {gigabytes / min(values):.2f})")
    for action, our_name in (("save sync", "save sync ours"), ("save nosync", "save nosync ours"), ("load", "load ours")):
        for library in ("safetensors", "torch"):
            peer, own = all_seconds[f"{action} {library}"], all_seconds[our_name]
            ratio = statistics.median(peer) / statistics.median(own)
            print(f"{action} compared with {library}: {ratio:.2f}x ({min(peer) / max(own):.2f} to {max(peer) / min(own):.2f})")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"gigabytes": gigabytes, "seconds": all_seconds}, file)


if __name__ == "__main__":
    main()
