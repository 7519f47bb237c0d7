#!/usr/bin/env python3
"""Runs random sequences of events on eight workers: workers are killed, stopped, continued, given a preemption notice, drained and joined
at random instants. The run must continue, record every step once, learn what one device learns, and leave no process running. Needs
$OPTIMUS
(the binary) and only Python's standard library. Runs 30 short sequences, or 300 with OPTIMUS_LONG, several per training run; OPTIMUS_SEED
selects other sequences, OPTIMUS_KEEP names a folder for the runs that fail."""
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
STEPS = 16  # of one sequence
LAYOUTS = ["--dp 8 --zero 0", "", "--pp 2 --dp 4 --zero 0", "--tp 2 --dp 4 --zero 0", "--pp 4 --dp 2 --zero 0"]
MIN_REPLICAS_FOR_TWO_LOSSES = 5  # with more workers than this, two may be lost at once: every worker has a replica of the state
MAX_JOINED = 2  # workers per sequence
LOSSES = ("kill", "stop", "notice", "drain")


class Sequences(SurvivalTest):
    steps = PER_RUN * STEPS

    def cause_event(self, name, generator, stopped, may_lose):
        """Causes one random event and returns its name."""
        workers = self.workers(name)
        kind = generator.choice(["kill", "kill", "stop", "notice", "drain", "continue", "join"] if may_lose else ["continue", "join"])
        if kind == "continue" and stopped:
            os.kill(stopped.pop(), signal.SIGCONT)
        elif kind == "join" and len(workers) < DEVICES and self.num_joined < MAX_JOINED:
            self.num_joined += 1
            self.join(name)
        elif kind in LOSSES and len(workers) > 3:
            worker = generator.choice(workers)
            if kind == "drain":
                run("drain", self.folder / name, "--device", worker["rank"], "--timeout", "20s", code=None)
            elif process_state(worker["pid"]) not in ("gone", "Z"):
                os.kill(worker["pid"], {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "notice": signal.SIGTERM}[kind])
                if kind == "stop":
                    stopped.append(worker["pid"])
        else:
            return None
        return kind

    def test_random_events_at_random_instants(self):
        """Runs several processes at once, because much of a sequence is waiting."""
        if SHARE:
            for number in range(int(SHARE), RUNS, SHARES):
                self.run_sequences(number)
            return
        shares = [subprocess.Popen([sys.executable, __file__], env=dict(os.environ, OPTIMUS_SHARE=str(share))) for share in range(min(SHARES, RUNS))]
        self.assertEqual([share.wait() for share in shares], [0] * len(shares))

    def run_sequences(self, number):
        """Runs one training with one sequence after another. A worker that is lost in a sequence is replaced before the next."""
        seed = int(os.environ.get("OPTIMUS_SEED", "1"))
        generator = random.Random(seed * 1000 + number)
        layout = generator.choice(LAYOUTS)
        name, all_events = f"run-{number}", []
        with self.subTest(seed=seed, number=number, layout=layout):
            process = self.start(name, "--devices", DEVICES, *layout.split(), "--save-every", generator.choice([0, 10]))
            try:
                for first in range(0, self.steps, STEPS):
                    self.replace_lost_workers(name, process, first + 3)
                    all_events.append(self.sequence(name, process, generator, layout, first + STEPS * 3 // 4))
                print(f"{name} {layout or 'any'}: {'; '.join(' '.join(events) for events in all_events)}", flush=True)
                self.expect_complete_run(name, process)
            except Exception:
                self.save_failed_run(name, f"{seed}-{number}")
                raise

    def replace_lost_workers(self, name, process, step):
        """Joins workers until the run has as many as it began with."""
        self.wait_for(name, step, process)
        for _ in range(DEVICES - len(self.workers(name))):
            self.join(name)

    def sequence(self, name, process, generator, layout, last_step):
        stopped, events, losses, before, self.num_joined = [], [], 0, len(self.decision_kinds(name)), 0
        end = time.time() + LIMIT
        while process.poll() is None and len(self.rows(name)) < last_step:
            self.assertLess(time.time(), end, f"step {last_step} was not reached: {self.log_tail(name)}")
            time.sleep(generator.uniform(0, STEPS / 40))
            # An event that the run has not handled yet may have left a single copy of some state.
            num_open = losses - sum(kind != "join" for kind in self.decision_kinds(name)[before:])
            may_lose = num_open <= 0 or (num_open == 1 and layout == LAYOUTS[0] and len(self.workers(name)) > MIN_REPLICAS_FOR_TWO_LOSSES)
            event = self.cause_event(name, generator, stopped, may_lose)
            events += [f"{event}@{len(self.rows(name))}"] if event else []
            losses += event in LOSSES
        for pid in stopped:  # also those that have not stopped yet: a signal takes a while to reach all threads
            if process_state(pid) not in ("gone", "Z"):
                os.kill(pid, signal.SIGCONT)
        return events

    def save_failed_run(self, name, as_name):
        if folder := os.environ.get("OPTIMUS_KEEP"):
            shutil.copytree(self.folder / name, f"{folder}/{as_name}", dirs_exist_ok=True)
            for log in self.folder.glob(f"{name}*.log"):
                shutil.copy(log, f"{folder}/{as_name}")


if __name__ == "__main__":
    unittest.main()
