#!/usr/bin/env python3
"""Workers that are killed or stopped, and disks that fill up, at random instants of a small training (while it starts, in steps, in saves): every other
worker ends in time, one line says what happened and what was saved, and going on from there gives what the undisturbed training gave. Needs $OPTIMUS (the binary) and nothing
but Python's standard library; full disks need root. A few trials a day, 200 with OPTIMUS_LONG."""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

from command_line import OPTIMUS, CommandLineTest, run

STEPS = 60
SHAPE = f"--model gpt2 --layers 2 --hidden 32 --heads 2 --seq 24 --batch 12 --lr 1e-2 --dropout 0.1 --sample 0 --threads 1 --precision fp64 --steps {STEPS}".split()
# Devices, how they share the model, and which of them hold the same.
PLANS = {
    "copies": (3, "--dp 3 --zero 0", [{0, 1, 2}]),
    "tensor": (4, "--tp 2 --dp 2 --zero 0", [{0, 2}, {1, 3}]),
    "shards": (3, "--dp 3 --zero 3", [{0}, {1}, {2}]),
    "buddies": (3, "--dp 3 --zero 3 --mtbf 1m", [{0, 1}, {1, 2}, {2, 0}]),
    "stages": (4, "--pp 2 --dp 2 --zero 0 --microbatch 2", [{0, 1}, {2, 3}]),
}
TIMEOUT = 2  # seconds, of a worker for others that do not answer
GRACE = 10  # seconds that the command gives the others to say what they saw
STOPPED = TIMEOUT + 5  # seconds until the command itself gives a stopped worker up
TRIALS = 200 if os.environ.get("OPTIMUS_LONG") else 4


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "optimus" in name or "torch" in name}


class Faults(CommandLineTest):
    def setUp(self):
        super().setUp()
        self.text = self.write("text.txt", "".join(f"line {i} of {i * 7 % 31}, and so on\n" for i in range(900)))
        self.random = random.Random(int(os.environ.get("OPTIMUS_SEED", "1")))
        self.whole = {}
        self.counts = {}  # of trials, by instant and signal
        self.shared_memory = shared_memory()

    def tearDown(self):
        self.assertEqual(shared_memory(), self.shared_memory)
        super().tearDown()

    def words(self, name, plan, *more):
        devices, layout, _ = PLANS[plan]
        return ["train", *SHAPE, "--data", self.text, "--run", self.folder / name, "--devices", devices, *layout.split(), "--timeout", f"{TIMEOUT}s", "--static", *more]

    def rows(self, name):
        try:
            lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        result = []
        for line in lines:
            try:
                result.append(json.loads(line))
            except json.JSONDecodeError:  # under way
                break
        return result

    def undisturbed(self, plan):
        if plan not in self.whole:
            run(*self.words(f"whole-{plan}", plan, "--save-every", 0))
            self.whole[plan] = self.rows(f"whole-{plan}")
        return self.whole[plan]

    def start(self, name, plan, *more):
        process = subprocess.Popen([OPTIMUS, *map(str, self.words(name, plan, *more))], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def wait_for_steps(self, process, name, count):
        end = time.time() + 60
        while time.time() < end and process.poll() is None and len(self.rows(name)) < count:
            time.sleep(0.002)

    def wait_for_save(self, process, name):
        """A checkpoint is being written."""
        end = time.time() + 60
        while time.time() < end and process.poll() is None and not any((self.folder / name / "checkpoints").glob("*.tmp-*")):
            time.sleep(0.001)

    def workers(self, name):
        return [worker["pid"] for worker in json.loads((self.folder / name / "workers.json").read_text())["workers"]]

    def wait_for_workers(self, process, name, count):
        end = time.time() + 60
        while time.time() < end and process.poll() is None:
            try:
                if len(self.workers(name)) == count:
                    return
            except (OSError, ValueError):
                pass
            time.sleep(0.002)

    def wait_for_instant(self, process, name, when, devices):
        """Somewhere in the start, in a step, or in a save."""
        self.wait_for_workers(process, name, devices)
        if when == "start":
            time.sleep(self.random.random() * 0.8)
            return
        self.wait_for_steps(process, name, self.random.randint(3, STEPS // 2))
        if when == "save":
            self.wait_for_save(process, name)
        time.sleep(self.random.random() * 0.02)

    def expect_end(self, process, pids, seconds):
        began = time.time()
        out, errors = process.communicate(timeout=60)
        self.assertLess(time.time() - began, seconds, errors)
        end = time.time() + 2
        while any(map(is_alive, pids)) and time.time() < end:
            time.sleep(0.01)
        self.assertEqual([pid for pid in pids if is_alive(pid)], [])
        return [line for line in errors.splitlines() if line.startswith("optimus: ")]

    def expect_goes_on(self, name, plan):
        """From what there is, to what the undisturbed run came to."""
        run("train", "--resume", self.folder / name)
        ours, whole = self.rows(name), self.undisturbed(plan)
        self.assertEqual([row["step"] for row in ours], list(range(1, STEPS + 1)))
        for mine, theirs in zip(ours, whole):
            for key in ("loss", "grad_norm"):  # the same plan adds up in the same order; 1e-9: tests/engine/parallel_test.cpp
                self.assertAlmostEqual(mine[key] / theirs[key], 1, delta=1e-9, msg=f"step {mine['step']}")

    def trial(self, number):
        plan = self.random.choice(list(PLANS))
        how = self.random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        devices, _, holders = PLANS[plan]
        victims = set(self.random.sample(range(devices), self.random.choice([1, 1, 2])))
        when = self.random.choice(["start", "steps", "steps", "save"])
        save_every = 7 if when == "save" else self.random.choice([0, 7])
        name = f"run-{number}"
        with self.subTest(number=number, plan=plan, how=how.name, victims=victims, save_every=save_every, when=when):
            process = self.start(name, plan, "--save-every", save_every)
            self.wait_for_instant(process, name, when, devices)
            pids = self.workers(name)
            before = len(self.rows(name))
            if len(pids) < devices:
                process.communicate(timeout=60)
                return False  # it was done before
            for victim in victims:
                os.kill(pids[victim], how)
            lines = self.expect_end(process, pids, GRACE + 5 + (STOPPED if how == signal.SIGSTOP else 0))
            if process.returncode == 0:
                return False  # it was done before
            self.assertEqual(process.returncode, 1)
            self.assertEqual(len(lines), 1, lines)
            self.counts[when, how.name] = self.counts.get((when, how.name), 0) + 1
            self.expect_line(lines[0], name, victims, how, all(group - victims for group in holders), before)
            self.assertEqual([path.name for path in (self.folder / name / "checkpoints").glob("*.tmp-*")], [])
            self.expect_goes_on(name, plan)
            shutil.rmtree(self.folder / name)
        return True

    def expect_line(self, line, name, victims, how, is_covered, before):
        if how == signal.SIGKILL:
            self.assertTrue(any(f"rank {victim} (process " in line for victim in victims), line)
            self.assertIn("signal 9", line)
        else:
            self.assertIn("does not respond", line)
        if not self.rows(name) and "lost with the ranks" not in line:
            return  # nobody had begun to train: there was nothing to save
        saved = re.search(r"saved step (\d+): optimus train --resume (\S+)", line)
        last = re.search(r"the last complete checkpoint is from step (\d+)", line)
        if is_covered:
            # Nothing that was told is lost: a save may have been complete just then.
            step = int((saved or last)[1]) if saved or last else 0
            self.assertGreaterEqual(step, before, line)
            self.assertEqual(len(self.rows(name)), step, line)
        else:
            self.assertIsNone(saved, line)
            self.assertRegex(line, r"lost with the ranks: \S+ \[[0-9:, ]+\], \S+ \[[0-9:, ]+\] and \d+ more")
            self.assertTrue(last or "there is no checkpoint yet" in line, line)

    def test_workers_are_lost(self):
        done = 0
        for number in range(3 * TRIALS):
            done += self.trial(number)
            if done == TRIALS:
                break
        self.assertEqual(done, TRIALS)
        print("trials:", ", ".join(f"{count} {how} in {when}" for (when, how), count in sorted(self.counts.items())), file=sys.stderr)

    def start_ranks(self, name, plan):
        """As a launcher does that leaves the others alone when one dies."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        devices, layout, _ = PLANS[plan]
        words = [OPTIMUS, "train", *SHAPE, "--data", self.text, "--run", self.folder / name, *layout.split(), "--timeout", f"{TIMEOUT}s", "--static"]
        ranks = []
        for rank in range(devices):
            variables = {"JOB_COMPLETION_INDEX": rank, "WORLD_SIZE": devices, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            process = subprocess.Popen(list(map(str, words)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       env={**os.environ, **{key: str(value) for key, value in variables.items()}})
            self.addCleanup(lambda process=process: process.poll() is None and process.kill())
            ranks.append(process)
        return ranks

    def test_a_rank_of_a_launcher_is_lost(self):
        """Rank 0 hosts the store then, and decides."""
        name = "launched"
        ranks = self.start_ranks(name, "copies")
        self.wait_for_steps(ranks[0], name, self.random.randint(3, STEPS // 2))
        before = len(self.rows(name))
        ranks[2].kill()
        lines = self.expect_end(ranks[0], [rank.pid for rank in ranks[:2]], 20)
        self.assertEqual(len(lines), 1, lines)
        self.assertIn(f"rank 2 (process {ranks[2].pid} on ", lines[0])
        step = int(re.search(r"the other 2 ranks saved step (\d+): ", lines[0])[1])
        self.assertGreaterEqual(step, before)
        for rank in ranks[1:]:
            rank.communicate(timeout=20)
        self.expect_goes_on(name, "copies")

    def test_a_rank_of_a_launcher_is_lost_while_it_starts(self):
        """Killed or stopped, any of them, between the first hello and the first step."""
        for trial in range(max(2, TRIALS // 10)):
            name, victim = f"starting-{trial}", self.random.randrange(3)
            how = [signal.SIGKILL, signal.SIGSTOP][trial % 2]
            with self.subTest(trial=trial, victim=victim, how=how.name):
                ranks = self.start_ranks(name, "copies")
                self.wait_for_workers(ranks[0], name, 3)  # they are listed when all are there
                time.sleep(self.random.random() * 0.3)
                ranks[victim].send_signal(how)
                others = [rank for rank in ranks if rank is not ranks[victim]]
                began = time.time()
                errors = [rank.communicate(timeout=60)[1] for rank in others]
                self.assertLess(time.time() - began, GRACE + 5 + STOPPED, errors)
                ranks[victim].kill()
                ranks[victim].communicate(timeout=20)
                if all(rank.returncode == 0 for rank in others):
                    continue  # it was done before
                self.assertEqual([rank.returncode for rank in others], [1, 1], errors)
                self.assertIn(f"rank {victim}", "".join(errors))
                self.expect_goes_on(name, "copies")

    def test_the_disk_is_full(self):
        if os.geteuid() != 0:
            self.skipTest("a small file system of its own needs root")
        disk = self.folder / "disk"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", disk], capture_output=True).returncode != 0:
            self.skipTest("no file system can be mounted here")
        self.addCleanup(lambda: subprocess.run(["umount", "-l", disk], check=True))
        for trial in range(max(1, TRIALS // 20)):
            name = f"disk/run-{trial}"
            process = self.start(name, "copies", "--save-every", 5)
            self.wait_for_steps(process, name, self.random.randint(8, STEPS // 2))
            pids = self.workers(name)
            filler = disk / "filler"
            with open(filler, "wb", buffering=0) as file:
                try:
                    while file.write(bytes(4096)) > 0:
                        pass
                except OSError:
                    pass
            lines = self.expect_end(process, pids, 60)
            if process.returncode != 0:
                self.assertEqual(len(lines), 1, lines)
                self.assertIn("No space left", lines[0])
            filler.unlink()
            self.assertEqual(process.returncode, 1)
            self.expect_goes_on(name, "copies")
            shutil.rmtree(self.folder / name)


if __name__ == "__main__":
    unittest.main()
