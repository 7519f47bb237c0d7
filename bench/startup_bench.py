#!/usr/bin/env python3
"""Start-up time of a run by the number of ranks on one machine: from the command to the end of the first step, divided into the time
until all ranks have joined, the time until groups are connected, and the step. Uses a tiny model, so that nothing else matters.
    python3 bench/startup_bench.py [build/release/optimus] [--sizes 2,4,8,16,32,64] [--launched]
--launched: ranks as a launcher starts them (one process each); otherwise workers of one command."""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("optimus", nargs="?", default="build/release/optimus")
parser.add_argument("--sizes", default="2,4,8,16,32,64")
parser.add_argument("--launched", action="store_true")
options = parser.parse_args()


def args(size, folder):
    shape = f"--model gpt2 --layers 2 --hidden 16 --heads 2 --seq 8 --batch {size} --steps 2 --sample 0 --threads 1 --validation 0 --dp {size} --zero 0"
    return ["train", *shape.split(), "--data", folder / "text.txt", "--run", folder / "run"]


def start(size, folder):
    command = list(map(str, [options.optimus, *args(size, folder)]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if not options.launched:
        return [subprocess.Popen([*command, "--devices", str(size)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)]
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid())}
    return [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**environment, **common, "RANK": str(rank)})
            for rank in range(size)]


def seconds_until(condition, start_time, processes):
    while not condition():
        if all(process.poll() is not None for process in processes):
            break
        time.sleep(0.005)
    return time.monotonic() - start_time


print("| ranks | all joined | first step done | end | step 2 | seconds per rank |\n|---|---|---|---|---|---|")
for size in map(int, options.sizes.split(",")):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("".join(f"line {i}\n" for i in range(20 * size + 200)))
        start_time = time.monotonic()
        processes = start(size, folder)
        listed = seconds_until((folder / "run/workers.json").exists, start_time, processes)
        metrics = folder / "run/metrics.jsonl"
        first = seconds_until(lambda: metrics.exists() and metrics.stat().st_size > 0, start_time, processes)
        errors = [process.communicate()[1].decode() for process in processes]
        end = time.monotonic() - start_time
        if any(process.returncode for process in processes):
            print(f"| {size} | failed: {errors[0].splitlines()[-1] if errors[0] else ''} |")
            continue
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        print(f"| {size} | {listed:.1f} s | {first:.1f} s | {end:.1f} s | {rows[-1]['seconds']:.2f} s | {first / size:.3f} |", flush=True)
