#!/usr/bin/env python3
"""Soak test: a training run on eight workers of which one is killed every 15 s and another joins 5 s later, for an hour or the given time.
Reports lost steps and recovery times, and compares the losses with those of one device. Needs $OPTIMUS (the binary). Exit code 1: a check
failed; the folder of the run is kept.

    OPTIMUS=build/test/optimus python3 tests/soak/survive.py --minutes 60"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

OPTIMUS = os.environ["OPTIMUS"]
SHAPE = "--model gpt2 --layers 4 --hidden 64 --heads 4 --seq 64 --batch 32 --lr 1e-3 --sample 0 --threads 1 --precision fp64 --save-every 0".split()
UNREACHABLE_STEP = 10**7  # steps; more than the run has time for
LONGEST_PAUSE = 60  # seconds without a step after which the run counts as hanging
# fp64; another summation order changes rounding by about 1e-16 per sum, which 400 steps of this model at this learning rate amplify to
# 1e-12.
CLOSE = 1e-9

started = []  # all are killed at exit


class CheckFailed(Exception):
    pass


class Records:
    """Lines of a file of a run, read incrementally."""

    def __init__(self, path):
        self.path, self.place, self.rows = path, 0, []

    def read(self):
        try:
            with open(self.path, "rb") as file:
                if file.seek(0, 2) < self.place:  # the file was rewritten after lost steps
                    self.place, self.rows = 0, []
                file.seek(self.place)
                text = file.read()
        except FileNotFoundError:
            return self.rows
        whole = text[: text.rfind(b"\n") + 1]
        self.rows += [json.loads(line) for line in whole.splitlines()]
        self.place += len(whole)
        return self.rows


def start(args, log):
    process = subprocess.Popen([OPTIMUS, *map(str, args)], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    started.append(process)
    return process


def end(process):
    process.send_signal(signal.SIGINT)
    return process.wait(120)


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def living_workers(run):
    try:
        return [worker["pid"] for worker in json.loads((run / "workers.json").read_text())["workers"] if is_alive(worker["pid"])]
    except (FileNotFoundError, json.JSONDecodeError):
        return []


def wait_for_steps(metrics, count, process, timeout=LONGEST_PAUSE):
    deadline = time.time() + timeout
    while len(metrics.read()) < count:
        if process.poll() is not None:
            raise CheckFailed(f"the run exited with code {process.returncode}")
        if time.time() > deadline:
            raise CheckFailed(f"step {count} was not reached within {timeout} s")
        time.sleep(0.02)


def speed(args, folder, devices, seconds):
    """Measures the steps per second of an undisturbed run."""
    metrics = Records(folder / "metrics.jsonl")
    process = start(["train", *args, "--run", folder, "--devices", devices, "--steps", UNREACHABLE_STEP], subprocess.DEVNULL)
    wait_for_steps(metrics, 5, process)
    start_time, before = time.time(), len(metrics.read())
    time.sleep(seconds)
    result = (len(metrics.read()) - before) / (time.time() - start_time)
    end(process)
    return result


class Soak:
    def __init__(self, folder, args, options):
        self.folder, self.run, self.options, self.random = folder, folder / "run", options, random.Random(options.seed)
        self.metrics, self.decisions = Records(self.run / "metrics.jsonl"), Records(self.run / "decisions.jsonl")
        self.pids, self.joined, self.recovered = set(), [], []
        self.log = open(folder / "log", "w")
        self.process = start(["train", *args, "--run", self.run, "--devices", 8, "--steps", UNREACHABLE_STEP], self.log)

    def recoveries(self):
        return sum(row["kind"] == "recover" for row in self.decisions.read())

    def kill_worker(self):
        """Kills a random worker and measures the time from the kill to the first step without the worker."""
        alive = living_workers(self.run)
        if len(alive) < 2:
            return
        before, start_time, step = self.recoveries(), time.time(), len(self.metrics.read())
        os.kill(self.random.choice(alive), signal.SIGKILL)
        while self.recoveries() == before:
            if time.time() > start_time + LONGEST_PAUSE or self.process.poll() is not None:
                raise CheckFailed(f"the run did not recover from a lost worker within {LONGEST_PAUSE} s")
            time.sleep(0.01)
        if not self.decisions.rows or self.decisions.rows[-1]["step"] < step - 1:
            raise CheckFailed(f"state was lost: the run rolled back from step {step}")
        wait_for_steps(self.metrics, self.decisions.rows[-1]["step"] + 1, self.process)
        self.recovered.append(time.time() - start_time)

    def join(self):
        log = open(self.folder / f"join-{len(self.joined)}.log", "w")
        self.joined.append(start(["join", self.run], log))
        log.close()

    def cycle(self):
        start_time, before = time.time(), len(self.metrics.read())
        time.sleep(self.options.every - self.options.back)
        self.pids |= set(living_workers(self.run))
        self.kill_worker()
        time.sleep(max(0, start_time + self.options.every - time.time()))
        self.join()
        if len(self.metrics.read()) <= before:
            raise CheckFailed("no step was completed between two kills")

    def disturb(self):
        wait_for_steps(self.metrics, 5, self.process)
        start_time, before = time.time(), len(self.metrics.read())
        while time.time() - start_time < 60 * self.options.minutes:
            if self.process.poll() is not None:
                raise CheckFailed(f"the run exited with code {self.process.returncode}")
            self.cycle()
        self.seconds, self.steps = time.time() - start_time, len(self.metrics.read()) - before

    def finish(self):
        code = end(self.process)
        if code != 130:
            raise CheckFailed(f"the run exited with code {code}")
        for one in self.joined:
            one.wait(60)
        left = [pid for pid in self.pids if is_alive(pid)]
        if left:
            raise CheckFailed(f"processes {left} are still running")
        self.metrics = Records(self.metrics.path)  # read again from the beginning
        if [row["step"] for row in self.metrics.read()] != list(range(1, len(self.metrics.rows) + 1)):
            raise CheckFailed("steps are missing or recorded twice")

    def compare_with_one_device(self, args):
        """Returns the largest relative difference of losses from one device, and the number of compared steps."""
        one = Records(self.folder / "one" / "metrics.jsonl")
        count = min(self.options.compare, len(self.metrics.rows))
        process = start(["train", *args, "--run", self.folder / "one", "--devices", 1, "--steps", UNREACHABLE_STEP], subprocess.DEVNULL)
        wait_for_steps(one, count, process, timeout=30 * 60)
        end(process)
        worst = max(abs(mine["loss"] / other["loss"] - 1) for mine, other in zip(self.metrics.rows[:count], one.rows))
        if not worst < CLOSE:
            raise CheckFailed(f"losses differ from those of one device by up to {worst:.1e}")
        return worst, count


def text_of(seconds):
    ordered = sorted(seconds)
    return f"median {statistics.median(ordered):.2f} s, 95th percentile {ordered[int(0.95 * (len(ordered) - 1))]:.2f} s, maximum {ordered[-1]:.2f} s"


def report(soak, before, after, worst, count):
    rows = soak.decisions.read()
    kinds = [row["kind"] for row in rows]
    quiet = (before + after) / 2
    change_lines = [line for log in soak.folder.glob("*log") for line in log.read_text().splitlines() if "; continuing with " in line]
    lost = [line for line in change_lines if "no steps lost" not in line]
    print(f"{soak.seconds / 60:.1f} minutes, {len(soak.recovered)} killed, {len(soak.joined)} joined, decisions: " + ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))))
    print(f"{soak.steps} steps, {soak.steps / soak.seconds:.2f} per second, {soak.steps / soak.seconds / quiet:.1%} of the undisturbed {quiet:.2f} ({before:.2f} before, {after:.2f} after)")
    print(f"from a kill to the next step: {text_of(soak.recovered)}; {len(lost)} recoveries lost steps")
    for kind in sorted(set(kinds)):
        print(f"  pause of {kind}: {text_of([row['pause_seconds'] for row in rows if row['kind'] == kind])}")
    print(f"losses of {count} steps differ from one device by at most {worst:.1e}; the loss of the last of {len(soak.metrics.rows)} steps is {soak.metrics.rows[-1]['loss']:.4f}")
    for line in lost:
        print("  " + line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=15, help="seconds between kills")
    parser.add_argument("--back", type=float, default=5, help="seconds from a kill until another worker joins")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compare", type=int, default=400, help="number of steps to compare with one device")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="optimus-soak-"))
    text = folder / "text.txt"
    text.write_text("".join(f"line {i} of {i * 7 % 31}, and so on\n" for i in range(3000)))
    args = [*SHAPE, "--data", str(text)]
    try:
        short = min(60, options.minutes * 6)
        before = speed(args, folder / "before", 8, short)
        soak = Soak(folder, args, options)
        soak.disturb()
        soak.finish()
        after = speed(args, folder / "after", 8, short)
        report(soak, before, after, *soak.compare_with_one_device(args))
    except CheckFailed as error:
        log = folder / "log"
        sys.exit(f"{error}\n{log.read_text()[-2000:] if log.exists() else ''}\nfolder of the run: {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    try:
        main()
    finally:
        for one in started:
            if one.poll() is None:
                one.kill()
