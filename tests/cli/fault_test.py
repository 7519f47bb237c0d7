#!/usr/bin/env python3
"""Kills and stops workers and fills disks at random instants of a small training run (during the start, in steps, in saves). Every
other worker must end in time, one line must report what happened and what was saved, and the resumed run must learn what the
undisturbed run learned. Needs $OPTIMUS (the binary) and only Python's standard library; full disks need root. Runs 4 trials, or 200
with OPTIMUS_LONG."""
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
# Number of devices, layout flags, and the sets of ranks that store the same state.
PLANS = {
    "copies": (3, "--dp 3 --zero 0", [{0, 1, 2}]),
    "tensor": (4, "--tp 2 --dp 2 --zero 0", [{0, 2}, {1, 3}]),
    "shards": (3, "--dp 3 --zero 3", [{0}, {1}, {2}]),
    "redundant": (3, "--dp 3 --zero 3 --mtbf 1m", [{0, 1}, {1, 2}, {2, 0}]),
    "stages": (4, "--pp 2 --dp 2 --zero 0 --microbatch 2", [{0, 1}, {2, 3}]),
}
TIMEOUT = 2  # seconds that a worker waits for another that does not respond
REPORT_SECONDS = 10  # seconds that the command gives the other workers to report what they observed
STOPPED_SECONDS = TIMEOUT + 5  # seconds until the command treats a stopped worker as failed
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
        self.undisturbed_rows = {}
        self.counts = {}  # number of trials by phase and signal
        self.shared_memory = shared_memory()

    def tearDown(self):
        self.assertEqual(shared_memory(), self.shared_memory)
        super().tearDown()

    def train_args(self, name, plan, *more):
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
            except json.JSONDecodeError:  # being written
                break
        return result

    def undisturbed(self, plan):
        if plan not in self.undisturbed_rows:
            run(*self.train_args(f"whole-{plan}", plan, "--save-every", 0))
            self.undisturbed_rows[plan] = self.rows(f"whole-{plan}")
        return self.undisturbed_rows[plan]

    def start(self, name, plan, *more):
        process = subprocess.Popen([OPTIMUS, *map(str, self.train_args(name, plan, *more))], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def wait_for_steps(self, process, name, count):
        end = time.time() + 60
        while time.time() < end and process.poll() is None and len(self.rows(name)) < count:
            time.sleep(0.002)

    def wait_for_save(self, process, name):
        """Waits until a checkpoint is being written."""
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

    def wait_for_instant(self, process, name, phase, devices):
        """Waits for a random instant of the start, of a step, or of a save."""
        self.wait_for_workers(process, name, devices)
        if phase == "start":
            time.sleep(self.random.random() * 0.8)
            return
        self.wait_for_steps(process, name, self.random.randint(3, STEPS // 2))
        if phase == "save":
            self.wait_for_save(process, name)
        time.sleep(self.random.random() * 0.02)

    def expect_end(self, process, pids, seconds):
        start_time = time.time()
        out, errors = process.communicate(timeout=60)
        self.assertLess(time.time() - start_time, seconds, errors)
        end = time.time() + 2
        while any(map(is_alive, pids)) and time.time() < end:
            time.sleep(0.01)
        self.assertEqual([pid for pid in pids if is_alive(pid)], [])
        return [line for line in errors.splitlines() if line.startswith("optimus: ")]

    def expect_resumes(self, name, plan):
        """Resumes the run from its saved state and compares it with the undisturbed run."""
        run("train", "--resume", self.folder / name)
        ours, reference = self.rows(name), self.undisturbed(plan)
        self.assertEqual([row["step"] for row in ours], list(range(1, STEPS + 1)))
        for row, expected in zip(ours, reference):
            for key in ("loss", "grad_norm"):  # the same plan sums in the same order; 1e-9 as in tests/engine/parallel_test.cpp
                self.assertAlmostEqual(row[key] / expected[key], 1, delta=1e-9, msg=f"step {row['step']}")

    def run_trial(self, number):
        plan = self.random.choice(list(PLANS))
        sent_signal = self.random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        devices, _, replica_sets = PLANS[plan]
        victims = set(self.random.sample(range(devices), self.random.choice([1, 1, 2])))
        phase = self.random.choice(["start", "steps", "steps", "save"])
        save_every = 7 if phase == "save" else self.random.choice([0, 7])
        name = f"run-{number}"
        with self.subTest(number=number, plan=plan, sent_signal=sent_signal.name, victims=victims, save_every=save_every, phase=phase):
            process = self.start(name, plan, "--save-every", save_every)
            self.wait_for_instant(process, name, phase, devices)
            pids = self.workers(name)
            before = len(self.rows(name))
            if len(pids) < devices:
                process.communicate(timeout=60)
                return False  # the run had ended before
            for victim in victims:
                os.kill(pids[victim], sent_signal)
            lines = self.expect_end(process, pids, REPORT_SECONDS + 5 + (STOPPED_SECONDS if sent_signal == signal.SIGSTOP else 0))
            if process.returncode == 0:
                return False  # the run had ended before
            self.assertEqual(process.returncode, 1)
            self.assertEqual(len(lines), 1, lines)
            self.counts[phase, sent_signal.name] = self.counts.get((phase, sent_signal.name), 0) + 1
            self.expect_message(lines[0], name, victims, sent_signal, all(group - victims for group in replica_sets), before)
            self.assertEqual([path.name for path in (self.folder / name / "checkpoints").glob("*.tmp-*")], [])
            self.expect_resumes(name, plan)
            shutil.rmtree(self.folder / name)
        return True

    def expect_message(self, line, name, victims, sent_signal, is_recoverable, before):
        if sent_signal == signal.SIGKILL:
            self.assertTrue(any(f"rank {victim} (process " in line for victim in victims), line)
            self.assertIn("signal 9", line)
        else:
            self.assertIn("does not respond", line)
        if not self.rows(name) and "lost with the ranks" not in line:
            return  # training had not begun: there was nothing to save
        saved = re.search(r"saved step (\d+): optimus train --resume (\S+)", line)
        last = re.search(r"the last complete checkpoint is from step (\d+)", line)
        if is_recoverable:
            # No reported step is lost. A save may have completed in the meantime, so later steps are possible.
            step = int((saved or last)[1]) if saved or last else 0
            self.assertGreaterEqual(step, before, line)
            self.assertEqual(len(self.rows(name)), step, line)
        else:
            self.assertIsNone(saved, line)
            self.assertRegex(line, r"lost with the ranks: \S+ \[[0-9:, ]+\], \S+ \[[0-9:, ]+\] and \d+ more")
            self.assertTrue(last or "there is no checkpoint yet" in line, line)

    def test_saves_the_state_of_lost_workers(self):
        done = 0
        for number in range(3 * TRIALS):
            done += self.run_trial(number)
            if done == TRIALS:
                break
        self.assertEqual(done, TRIALS)
        print("trials:", ", ".join(f"{count} {sent_signal} in {phase}" for (phase, sent_signal), count in sorted(self.counts.items())), file=sys.stderr)

    def start_ranks(self, name, plan):
        """Starts one process per rank, as a launcher does that does not end the other ranks when one fails."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        devices, layout, _ = PLANS[plan]
        args = [OPTIMUS, "train", *SHAPE, "--data", self.text, "--run", self.folder / name, *layout.split(), "--timeout", f"{TIMEOUT}s", "--static"]
        ranks = []
        for rank in range(devices):
            variables = {"JOB_COMPLETION_INDEX": rank, "WORLD_SIZE": devices, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            process = subprocess.Popen(list(map(str, args)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       env={**os.environ, **{key: str(value) for key, value in variables.items()}})
            self.addCleanup(lambda process=process: process.poll() is None and process.kill())
            ranks.append(process)
        return ranks

    def test_lost_rank_of_a_launcher(self):
        """Rank 0 hosts the store and decides what is saved."""
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
        self.expect_resumes(name, "copies")

    def test_rank_lost_during_the_start_of_a_launcher(self):
        """Kills or stops a random rank between its join request and the first step."""
        for trial in range(max(2, TRIALS // 10)):
            name, victim = f"starting-{trial}", self.random.randrange(3)
            sent_signal = [signal.SIGKILL, signal.SIGSTOP][trial % 2]
            with self.subTest(trial=trial, victim=victim, sent_signal=sent_signal.name):
                ranks = self.start_ranks(name, "copies")
                self.wait_for_workers(ranks[0], name, 3)  # ranks are listed when all have joined
                time.sleep(self.random.random() * 0.3)
                ranks[victim].send_signal(sent_signal)
                others = [rank for rank in ranks if rank is not ranks[victim]]
                start_time = time.time()
                errors = [rank.communicate(timeout=60)[1] for rank in others]
                self.assertLess(time.time() - start_time, REPORT_SECONDS + 5 + STOPPED_SECONDS, errors)
                ranks[victim].kill()
                ranks[victim].communicate(timeout=20)
                if all(rank.returncode == 0 for rank in others):
                    continue  # the run had ended before
                self.assertEqual([rank.returncode for rank in others], [1, 1], errors)
                self.assertIn(f"rank {victim}", "".join(errors))
                self.expect_resumes(name, "copies")

    def test_full_disk(self):
        if os.geteuid() != 0:
            self.skipTest("mounting a small file system needs root")
        disk = self.folder / "disk"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", disk], capture_output=True).returncode != 0:
            self.skipTest("this machine does not allow mounting a file system")
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
            self.expect_resumes(name, "copies")
            shutil.rmtree(self.folder / name)


if __name__ == "__main__":
    unittest.main()
