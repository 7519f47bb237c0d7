#!/usr/bin/env python3
"""An hour, or as long as is asked for, of a training on eight workers of which one is killed every 15 s and another joins 5 s later. Says what was lost, and
whether what was learned is what one device learns. Needs $OPTIMUS (the binary).

    OPTIMUS=build/test/optimus python3 tests/soak/survive.py --minutes 60"""
import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

OPTIMUS = os.environ["OPTIMUS"]
SHAPE = "--model gpt2 --layers 4 --hidden 64 --heads 4 --seq 64 --batch 32 --lr 1e-3 --sample 0 --threads 1 --precision fp64 --save-every 0".split()
FAR = 10**7  # steps: more than there is time for


started = []  # whatever happens, nothing is left running


def rows(run, name="metrics.jsonl"):
    try:
        lines = (run / name).read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def workers(run):
    try:
        return json.loads((run / "workers.json").read_text())["workers"]
    except (FileNotFoundError, json.JSONDecodeError):
        return []


def kill_one(run, chance):
    alive = [worker["pid"] for worker in workers(run) if pathlib.Path(f"/proc/{worker['pid']}").exists()]
    if len(alive) < 2:
        return False
    os.kill(chance.choice(alive), signal.SIGKILL)
    return True


def end(process):
    process.send_signal(signal.SIGINT)
    return process.wait(120)


def speed_undisturbed(words, folder, seconds):
    """Steps a second."""
    run = folder / "quiet"
    process = subprocess.Popen([OPTIMUS, "train", *words, "--run", run, "--devices", "8", "--steps", str(FAR)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(rows(run)) < 3:
        time.sleep(0.1)
    began, before = time.time(), len(rows(run))
    time.sleep(seconds)
    speed = (len(rows(run)) - before) / (time.time() - began)
    end(process)
    return speed


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--minutes", type=float, default=60)
    options.add_argument("--every", type=float, default=15, help="seconds from a loss to the next")
    options.add_argument("--back", type=float, default=5, help="seconds until another worker comes")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--compare", type=int, default=400, help="steps that one device repeats")
    asked = options.parse_args()
    chance = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        text = folder / "text.txt"
        text.write_text("".join(f"line {i} of {i * 7 % 31}, and so on\n" for i in range(3000)))
        words = [*SHAPE, "--data", str(text)]
        quiet = speed_undisturbed(words, folder, min(60, asked.minutes * 6))
        run, log = folder / "run", open(folder / "log", "w")
        process = subprocess.Popen([OPTIMUS, "train", *words, "--run", run, "--devices", "8", "--steps", str(FAR)], stdout=log, stderr=log)
        started.append(process)
        while len(rows(run)) < 3 and process.poll() is None:
            time.sleep(0.1)
        began, before, killed, joined = time.time(), len(rows(run)), 0, []
        while time.time() - began < 60 * asked.minutes and process.poll() is None:
            time.sleep(asked.every - asked.back)
            killed += kill_one(run, chance)
            time.sleep(asked.back)
            joined.append(subprocess.Popen([OPTIMUS, "join", run], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            started.append(joined[-1])
        seconds, steps = time.time() - began, len(rows(run)) - before
        code = end(process)
        if code != 130:
            sys.exit(f"the run ended with {code}: {(folder / 'log').read_text()[-2000:]}")
        for one in joined:
            one.wait(60)
        metrics, kinds = rows(run), [row["kind"] for row in rows(run, "decisions.jsonl")]
        if [row["step"] for row in metrics] != list(range(1, len(metrics) + 1)):
            sys.exit("steps are missing or stand twice")
        count = min(asked.compare, len(metrics))
        one = subprocess.Popen([OPTIMUS, "train", *words, "--run", folder / "one", "--devices", "1", "--steps", str(FAR)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(rows(folder / "one")) < count and one.poll() is None:
            time.sleep(0.2)
        end(one)
        worst = max(abs(mine["loss"] / other["loss"] - 1) for mine, other in zip(metrics, rows(folder / "one")))
        lost = sum("steps lost" in line or "step lost" in line and "no step lost" not in line for line in (folder / "log").read_text().splitlines())
        print(f"{seconds / 60:.1f} minutes, {killed} killed, {len(joined)} came, decisions: " + ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))))
        print(f"{steps} steps, {steps / seconds:.2f} a second, {steps / seconds / quiet:.1%} of the {quiet:.2f} undisturbed; {lost} times state was lost")
        print(f"loss of {min(len(metrics), count)} steps against one device: {worst:.1e} apart at most; last {metrics[-1]['loss']:.4f}")


if __name__ == "__main__":
    try:
        main()
    finally:
        for one in started:
            if one.poll() is None:
                one.kill()
