#!/usr/bin/env python3
"""The cost of monitoring on GPUs that work together, and whether a slow worker is detected: two workers that share the first GPU.

  python3 bench/gpu/watch.py OPTIMUS [--pairs 4] [--steps 160] [--slow-from 60] [--keep FOLDER]

Each run has two ranks of `optimus train`, started as torchrun does, one pipeline stage each, with many small kernels, so that the speed
of a rank is that of its host's kernel launches. Pairs: `--policy rule` and `--static` alternate; prints median milliseconds per step.
Then rank 1 is stopped by signals for 10 of every 20 ms from step --slow-from on, so that its forward and backward take twice as long, and
the decisions and observations of the run are printed. Both ranks compute on one GPU, so this shows what is detected and decided, but not
the speed of several GPUs."""
import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import tempfile
import time

WARM, DEVICE = 30, os.environ.get("WATCH_DEVICE", "cuda")
MODEL = "--model gpt2 --layers 24 --hidden 512 --heads 8 --seq 256 --batch 8 --microbatch 1 --precision bf16 --dropout 0 --tokenizer bytes --pp 2 --schedule 1f1b --sample 0 --save-every 0"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(program, data, folder, args):
    """Starts two ranks and returns their processes."""
    shared = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OPTIMUS_TOKEN": "two-workers-on-one-card"}
    line = [program, "train", "--data", data, "--run", folder / "run", "--device", DEVICE, *MODEL.split(), *map(str, args)]
    logs = [open(folder / f"rank-{rank}.log", "w") for rank in range(2)]
    return [subprocess.Popen(list(map(str, line)), stdout=logs[rank], stderr=logs[rank], env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]


def steps_of(folder):
    path = folder / "run" / "metrics.jsonl"
    return [json.loads(line) for line in open(path) if line.endswith("\n")] if path.exists() else []


def wait_for_end(ranks, folder, most=240):
    deadline = time.time() + most
    for rank in ranks:
        try:
            rank.wait(max(1, deadline - time.time()))
        except subprocess.TimeoutExpired:
            pass
    for rank in ranks:
        rank.kill()
        rank.wait()
    if any(rank.returncode for rank in ranks):
        raise SystemExit("\n".join((folder / f"rank-{rank}.log").read_text()[-1500:] for rank in range(2)))


def median_ms(rows, first, last):
    return 1000 * statistics.median(row["seconds"] for row in rows if first < row["step"] <= last)


def with_slow_worker(program, data, folder, options):
    ranks = start(program, data, folder, ["--steps", options.steps, "--policy", "rule"])
    while len(steps_of(folder)) < options.slow_from and all(rank.poll() is None for rank in ranks):
        time.sleep(0.02)
    while all(rank.poll() is None for rank in ranks):
        for what in (signal.SIGSTOP, signal.SIGCONT):
            if ranks[1].poll() is None:
                ranks[1].send_signal(what)
            time.sleep(0.01)
    wait_for_end(ranks, folder)
    rows = steps_of(folder)
    print(f"slow worker: {median_ms(rows, WARM, options.slow_from):.1f} ms per step before, {median_ms(rows, options.slow_from, options.slow_from + 8):.1f} ms while rank 1 is slow, {median_ms(rows, options.steps - 40, options.steps):.1f} ms in the last 40")
    print(subprocess.run([program, "decisions", folder / "run"], capture_output=True, text=True).stdout)
    for line in (folder / "rank-0.log").read_text().splitlines():
        if "slow" in line or "stays" in line:
            print("  " + line)
    print("observations, with forward and backward by stage:")
    path = folder / "run" / "observations.jsonl"
    for line in open(path) if path.exists() else []:
        seen = json.loads(line)
        stages = {group["group"]: round(1000 * group["compute"]["largest"][0][0], 2) for group in seen["groups"] if "compute" in group}
        print(f"  step {seen['step']}: {1000 * seen['seconds']:.1f} ms, compute {stages}")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--slow-from", type=int, default=60)
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()
    options.program = options.program.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = options.keep or pathlib.Path(scratch)
        data = scratch / "text.txt"
        scratch.mkdir(parents=True, exist_ok=True)
        root = pathlib.Path(__file__).resolve().parents[2]
        data.write_text("\n".join(path.read_text() for path in sorted((root / "docs").glob("*.md"))) * 4)
        found = {"rule": [], "static": []}
        for pair in range(options.pairs):
            for way in ["rule", "static"] if pair % 2 == 0 else ["static", "rule"]:
                folder = scratch / f"{way}-{pair}"
                folder.mkdir()
                wait_for_end(start(options.program, data, folder, ["--steps", 120, *(["--static"] if way == "static" else ["--policy", "rule"])]), folder)
                found[way].append(median_ms(steps_of(folder), WARM, 120))
                print(f"  {way}: {found[way][-1]:.2f} ms per step", flush=True)
        if options.pairs:
            ratios = sorted(rule / static for rule, static in zip(found["rule"], found["static"]))
            print(f"monitoring: median step time of rule divided by that of static: {', '.join(f'{ratio:.3f}' for ratio in ratios)}", flush=True)
        folder = scratch / "slow"
        folder.mkdir()
        with_slow_worker(options.program, data, folder, options)


if __name__ == "__main__":
    main()
