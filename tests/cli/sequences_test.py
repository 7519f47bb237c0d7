#!/usr/bin/env python3
"""A training on eight workers that are killed, stopped, continued, told to leave, drained and joined, in random sequences at random instants: it goes on, each step stands once,
what is learned is what one device learns, and nothing is left running. Needs $OPTIMUS (the binary) and nothing but Python's standard library. 30 short sequences a day, 300
with OPTIMUS_LONG, some in one training; OPTIMUS_SEED gives others, OPTIMUS_KEEP names a folder for the runs that fail."""
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import unittest

from command_line import run
from survive_test import DEVICES, LIMIT, SurvivalTest, process_state

IS_LONG = bool(os.environ.get("OPTIMUS_LONG"))
SEQUENCES = int(os.environ.get("OPTIMUS_SEQUENCES", 300 if IS_LONG else 30))
SHARES, SHARE = 3, os.environ.get("OPTIMUS_SHARE")
PER_RUN = 10
RUNS = -(-SEQUENCES // PER_RUN)
STEPS = 16  # of a sequence
LAYOUTS = ["--dp 8 --zero 0", "", "--pp 2 --dp 4 --zero 0", "--tp 2 --dp 4 --zero 0", "--pp 4 --dp 2 --zero 0"]
MANY = 5  # copies of everything, of copies: so many that two may be lost at once
MOST_JOINED = 2  # in a sequence
LOSSES = ("kill", "stop", "notice", "drain")


class Sequences(SurvivalTest):
    steps = PER_RUN * STEPS

    def disturb(self, name, chance, stopped, may_lose):
        """One event; what it was."""
        workers = self.workers(name)
        kind = chance.choice(["kill", "kill", "stop", "notice", "drain", "continue", "join"] if may_lose else ["continue", "join"])
        if kind == "continue" and stopped:
            os.kill(stopped.pop(), signal.SIGCONT)
        elif kind == "join" and len(workers) < DEVICES and self.num_joined < MOST_JOINED:
            self.num_joined += 1
            self.join(name)
        elif kind in LOSSES and len(workers) > 3:
            worker = chance.choice(workers)
            if kind == "drain":
                run("drain", self.folder / name, "--device", worker["rank"], "--timeout", "20s", code=None)
            elif process_state(worker["pid"]) not in ("gone", "Z"):
                os.kill(worker["pid"], {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "notice": signal.SIGTERM}[kind])
                if kind == "stop":
                    stopped.append(worker["pid"])
        else:
            return None
        return kind

    def test_anything_at_any_time(self):
        """Some at once: much of a sequence is waiting."""
        if SHARE:
            for number in range(int(SHARE), RUNS, SHARES):
                self.play(number)
            return
        shares = [subprocess.Popen([sys.executable, __file__], env=dict(os.environ, OPTIMUS_SHARE=str(share))) for share in range(min(SHARES, RUNS))]
        self.assertEqual([share.wait() for share in shares], [0] * len(shares))

    def play(self, number):
        """One training, sequence after sequence; who is lost in one is replaced before the next."""
        seed = int(os.environ.get("OPTIMUS_SEED", "1"))
        chance = random.Random(seed * 1000 + number)
        layout = chance.choice(LAYOUTS)
        name, told = f"run-{number}", []
        with self.subTest(seed=seed, number=number, layout=layout):
            process = self.start(name, "--devices", DEVICES, *layout.split(), "--save-every", chance.choice([0, 10]))
            try:
                for first in range(0, self.steps, STEPS):
                    self.bring_back(name, process, first + 3)
                    told.append(self.sequence(name, process, chance, layout, first + STEPS * 3 // 4))
                print(f"{name} {layout or 'any'}: {'; '.join(' '.join(events) for events in told)}", flush=True)
                self.expect_whole(name, process)
            except Exception:
                self.keep(name, f"{seed}-{number}")
                raise

    def bring_back(self, name, process, step):
        """Until a sequence begins: as many as the run began with, or on their way."""
        self.wait_for(name, step, process)
        for _ in range(DEVICES - len(self.workers(name))):
            self.join(name)

    def sequence(self, name, process, chance, layout, last_step):
        stopped, events, losses, before, self.num_joined = [], [], 0, len(self.kinds(name)), 0
        end = time.time() + LIMIT
        while process.poll() is None and len(self.rows(name)) < last_step:
            self.assertLess(time.time(), end, f"step {last_step} was not reached: {self.told(name)}")
            time.sleep(chance.uniform(0, STEPS / 40))
            # One that is not answered yet may have left a single copy of something.
            num_open = losses - sum(kind != "join" for kind in self.kinds(name)[before:])
            may_lose = num_open <= 0 or (num_open == 1 and layout == LAYOUTS[0] and len(self.workers(name)) > MANY)
            event = self.disturb(name, chance, stopped, may_lose)
            events += [f"{event}@{len(self.rows(name))}"] if event else []
            losses += event in LOSSES
        for pid in stopped:  # also one that has not stopped yet: a signal takes a while to reach all threads
            if process_state(pid) not in ("gone", "Z"):
                os.kill(pid, signal.SIGCONT)
        return events

    def keep(self, name, as_name):
        if folder := os.environ.get("OPTIMUS_KEEP"):
            shutil.copytree(self.folder / name, f"{folder}/{as_name}", dirs_exist_ok=True)
            for log in self.folder.glob(f"{name}*.log"):
                shutil.copy(log, f"{folder}/{as_name}")


if __name__ == "__main__":
    unittest.main()
