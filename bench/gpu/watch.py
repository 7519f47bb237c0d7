#!/usr/bin/env python3
"""What watching costs where GPUs work together, and whether a slow worker among them is found: two workers that share the first card.

  python3 bench/gpu/watch.py OPTIMUS [--pairs 4] [--steps 160] [--slow-from 60] [--keep FOLDER]

Each run is two ranks of `optimus train`, started as torchrun does, one stage of a pipeline each: of many small kernels, so that a rank is as
quick as its host launches them. Pairs: `--policy rule` and `--static` in turn, milliseconds of a step in the middle. Then rank 1 is stopped for 10 of
every 20 ms from step --slow-from on, by signals: its forward and backward take twice as long on the card, and what the run makes of that is
printed with what was observed. Both ranks compute on one card, so this shows what is seen and decided, and nothing of several cards' speed."""
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


def start(program, data, folder, words):
    """Two ranks; returns their processes."""
    shared = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OPTIMUS_TOKEN": "two-workers-on-one-card"}
    line = [program, "train", "--data", data, "--run", folder / "run", "--device", DEVICE, *MODEL.split(), *map(str, words)]
    logs = [open(folder / f"rank-{rank}.log", "w") for rank in range(2)]
    return [subprocess.Popen(list(map(str, line)), stdout=logs[rank], stderr=logs[rank], env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]


def steps_of(folder):
    path = folder / "run" / "metrics.jsonl"
    return [json.loads(line) for line in open(path) if line.endswith("\n")] if path.exists() else []


def ended(ranks, folder, most=240):
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


def middle(rows, first, last):
    return 1000 * statistics.median(row["seconds"] for row in rows if first < row["step"] <= last)


def with_slow_worker(program, data, folder, asked):
    ranks = start(program, data, folder, ["--steps", asked.steps, "--policy", "rule"])
    while len(steps_of(folder)) < asked.slow_from and all(rank.poll() is None for rank in ranks):
        time.sleep(0.02)
    while all(rank.poll() is None for rank in ranks):
        for what in (signal.SIGSTOP, signal.SIGCONT):
            if ranks[1].poll() is None:
                ranks[1].send_signal(what)
            time.sleep(0.01)
    ended(ranks, folder)
    rows = steps_of(folder)
    print(f"slow worker: {middle(rows, WARM, asked.slow_from):.1f} ms a step before, {middle(rows, asked.slow_from, asked.slow_from + 8):.1f} ms when rank 1 is slow, {middle(rows, asked.steps - 40, asked.steps):.1f} ms in the last 40")
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
    asked = parser.parse_args()
    asked.program = asked.program.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = asked.keep or pathlib.Path(scratch)
        data = scratch / "text.txt"
        scratch.mkdir(parents=True, exist_ok=True)
        root = pathlib.Path(__file__).resolve().parents[2]
        data.write_text("\n".join(path.read_text() for path in sorted((root / "docs").glob("*.md"))) * 4)
        found = {"rule": [], "static": []}
        for pair in range(asked.pairs):
            for way in ["rule", "static"] if pair % 2 == 0 else ["static", "rule"]:
                folder = scratch / f"{way}-{pair}"
                folder.mkdir()
                ended(start(asked.program, data, folder, ["--steps", 120, *(["--static"] if way == "static" else ["--policy", "rule"])]), folder)
                found[way].append(middle(steps_of(folder), WARM, 120))
                print(f"  {way}: {found[way][-1]:.2f} ms a step", flush=True)
        if asked.pairs:
            ratios = sorted(rule / static for rule, static in zip(found["rule"], found["static"]))
            print(f"watching: rule over static, step by step in the middle: {', '.join(f'{ratio:.3f}' for ratio in ratios)}", flush=True)
        folder = scratch / "slow"
        folder.mkdir()
        with_slow_worker(asked.program, data, folder, asked)


if __name__ == "__main__":
    main()
