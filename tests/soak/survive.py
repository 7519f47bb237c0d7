#!/usr/bin/env python3
"""An hour, or as long as is asked for, of a training on eight workers of which one is killed every 15 s and another joins 5 s later. Says what was lost, how long
recovery took, and whether what was learned is what one device learns. Needs $OPTIMUS (the binary). Exit 1: something is not as it must be; its folder is kept.

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
FAR = 10**7  # steps: more than there is time for
LONGEST_PAUSE = 60  # seconds without a step: then it hangs
# fp64: sums in another order differ by rounding, some 1e-16 each; 400 steps of this model at this rate were seen to raise that to 1e-12.
CLOSE = 1e-9

started = []  # whatever happens, nothing is left running


class NotAsItMustBe(Exception):
    pass


class Records:
    """Lines of a file of a run, read on from where they were read to before."""

    def __init__(self, path):
        self.path, self.place, self.rows = path, 0, []

    def read(self):
        try:
            with open(self.path, "rb") as file:
                if file.seek(0, 2) < self.place:  # kept anew, after a loss
                    self.place, self.rows = 0, []
                file.seek(self.place)
                text = file.read()
        except FileNotFoundError:
            return self.rows
        whole = text[: text.rfind(b"\n") + 1]
        self.rows += [json.loads(line) for line in whole.splitlines()]
        self.place += len(whole)
        return self.rows


def start(words, log):
    process = subprocess.Popen([OPTIMUS, *map(str, words)], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
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


def wait_for_steps(metrics, count, process, patience=LONGEST_PAUSE):
    deadline = time.time() + patience
    while len(metrics.read()) < count:
        if process.poll() is not None:
            raise NotAsItMustBe(f"the run ended with {process.returncode}")
        if time.time() > deadline:
            raise NotAsItMustBe(f"no step {count} within {patience} s")
        time.sleep(0.02)


def speed(words, folder, devices, seconds):
    """Steps a second, undisturbed."""
    metrics = Records(folder / "metrics.jsonl")
    process = start(["train", *words, "--run", folder, "--devices", devices, "--steps", FAR], subprocess.DEVNULL)
    wait_for_steps(metrics, 5, process)
    began, before = time.time(), len(metrics.read())
    time.sleep(seconds)
    result = (len(metrics.read()) - before) / (time.time() - began)
    end(process)
    return result


class Soak:
    def __init__(self, folder, words, asked):
        self.folder, self.run, self.asked, self.chance = folder, folder / "run", asked, random.Random(asked.seed)
        self.metrics, self.decisions = Records(self.run / "metrics.jsonl"), Records(self.run / "decisions.jsonl")
        self.seen, self.joined, self.recovered = set(), [], []
        self.log = open(folder / "log", "w")
        self.process = start(["train", *words, "--run", self.run, "--devices", 8, "--steps", FAR], self.log)

    def recoveries(self):
        return sum(row["kind"] == "recover" for row in self.decisions.read())

    def kill_one(self):
        """Takes the time from the blow to the first step that is done without the worker."""
        alive = living_workers(self.run)
        if len(alive) < 2:
            return
        before, began, step = self.recoveries(), time.time(), len(self.metrics.read())
        os.kill(self.chance.choice(alive), signal.SIGKILL)
        while self.recoveries() == before:
            if time.time() > began + LONGEST_PAUSE or self.process.poll() is not None:
                raise NotAsItMustBe(f"a loss was not followed by a recovery within {LONGEST_PAUSE} s")
            time.sleep(0.01)
        if not self.decisions.rows or self.decisions.rows[-1]["step"] < step - 1:
            raise NotAsItMustBe(f"state was lost: the run went back from step {step}")
        wait_for_steps(self.metrics, self.decisions.rows[-1]["step"] + 1, self.process)
        self.recovered.append(time.time() - began)

    def join(self):
        log = open(self.folder / f"join-{len(self.joined)}.log", "w")
        self.joined.append(start(["join", self.run], log))
        log.close()

    def cycle(self):
        began, before = time.time(), len(self.metrics.read())
        time.sleep(self.asked.every - self.asked.back)
        self.seen |= set(living_workers(self.run))
        self.kill_one()
        time.sleep(max(0, began + self.asked.every - time.time()))
        self.join()
        if len(self.metrics.read()) <= before:
            raise NotAsItMustBe("no step in a whole period")

    def disturb(self):
        wait_for_steps(self.metrics, 5, self.process)
        began, before = time.time(), len(self.metrics.read())
        while time.time() - began < 60 * self.asked.minutes:
            if self.process.poll() is not None:
                raise NotAsItMustBe(f"the run ended with {self.process.returncode}")
            self.cycle()
        self.seconds, self.steps = time.time() - began, len(self.metrics.read()) - before

    def finish(self):
        code = end(self.process)
        if code != 130:
            raise NotAsItMustBe(f"the run ended with {code}")
        for one in self.joined:
            one.wait(60)
        left = [pid for pid in self.seen if is_alive(pid)]
        if left:
            raise NotAsItMustBe(f"processes {left} are left")
        self.metrics = Records(self.metrics.path)  # as it is in the end
        if [row["step"] for row in self.metrics.read()] != list(range(1, len(self.metrics.rows) + 1)):
            raise NotAsItMustBe("steps are missing or stand twice")

    def apart(self, words):
        """How far losses are from one device's, and of how many steps."""
        one = Records(self.folder / "one" / "metrics.jsonl")
        count = min(self.asked.compare, len(self.metrics.rows))
        process = start(["train", *words, "--run", self.folder / "one", "--devices", 1, "--steps", FAR], subprocess.DEVNULL)
        wait_for_steps(one, count, process, patience=30 * 60)
        end(process)
        worst = max(abs(mine["loss"] / other["loss"] - 1) for mine, other in zip(self.metrics.rows[:count], one.rows))
        if not worst < CLOSE:
            raise NotAsItMustBe(f"losses are {worst:.1e} apart from one device's")
        return worst, count


def text_of(seconds):
    ordered = sorted(seconds)
    return f"median {statistics.median(ordered):.2f} s, 95 of 100 within {ordered[int(0.95 * (len(ordered) - 1))]:.2f} s, longest {ordered[-1]:.2f} s"


def report(soak, before, after, worst, count):
    rows = soak.decisions.read()
    kinds = [row["kind"] for row in rows]
    quiet = (before + after) / 2
    said = [line for log in soak.folder.glob("*log") for line in log.read_text().splitlines() if "; continuing with " in line]
    lost = [line for line in said if "no steps lost" not in line]
    print(f"{soak.seconds / 60:.1f} minutes, {len(soak.recovered)} killed, {len(soak.joined)} came, decisions: " + ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))))
    print(f"{soak.steps} steps, {soak.steps / soak.seconds:.2f} a second, {soak.steps / soak.seconds / quiet:.1%} of the {quiet:.2f} undisturbed ({before:.2f} before, {after:.2f} after)")
    print(f"from a kill to the next step: {text_of(soak.recovered)}; {len(lost)} times state was lost")
    for kind in sorted(set(kinds)):
        print(f"  pause of {kind}: {text_of([row['pause_seconds'] for row in rows if row['kind'] == kind])}")
    print(f"loss of {count} steps against one device: {worst:.1e} apart at most; last of {len(soak.metrics.rows)} is {soak.metrics.rows[-1]['loss']:.4f}")
    for line in lost:
        print("  " + line)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--minutes", type=float, default=60)
    options.add_argument("--every", type=float, default=15, help="seconds from a loss to the next")
    options.add_argument("--back", type=float, default=5, help="seconds until another worker comes")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--compare", type=int, default=400, help="steps that one device repeats")
    asked = options.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="optimus-soak-"))
    text = folder / "text.txt"
    text.write_text("".join(f"line {i} of {i * 7 % 31}, and so on\n" for i in range(3000)))
    words = [*SHAPE, "--data", str(text)]
    try:
        short = min(60, asked.minutes * 6)
        before = speed(words, folder / "before", 8, short)
        soak = Soak(folder, words, asked)
        soak.disturb()
        soak.finish()
        after = speed(words, folder / "after", 8, short)
        report(soak, before, after, *soak.apart(words))
    except NotAsItMustBe as why:
        log = folder / "log"
        sys.exit(f"{why}\n{log.read_text()[-2000:] if log.exists() else ''}\nits folder: {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    try:
        main()
    finally:
        for one in started:
            if one.poll() is None:
                one.kill()
