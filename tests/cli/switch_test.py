#!/usr/bin/env python3
"""Tests a training run by worker processes that changes its plan: by a script, on request, and while workers are killed. It must learn
what one device learns, and move as few bytes as possible. Needs $OPTIMUS (the binary) and only Python's standard library. Runs a few
trials, many more with OPTIMUS_LONG."""
import json
import os
import pathlib
import random
import signal
import subprocess
import time
import unittest

from command_line import OPTIMUS, CommandLineTest, run

STEPS = 40
MODEL = "--model gpt2 --layers 4 --hidden 32 --heads 4 --seq 24".split()
SHAPE = [*MODEL, *f"--batch 12 --lr 1e-2 --dropout 0.1 --sample 0 --threads 1 --precision fp64 --steps {STEPS}".split()]
# Number of devices and layout flags. Some plans leave devices unused.
PLANS = [(4, "--tp 2 --pp 2"), (4, "--dp 4 --zero 3"), (4, "--pp 4"), (4, "--pp 2 --dp 2 --zero 1"), (4, "--tp 4"), (4, "--cp 2 --dp 2 --zero 2"),
         (4, "--pp 2 --tp 2 --schedule gpipe --recompute full"), (4, "--pp 2 --dp 2 --schedule interleaved --chunks 2"), (3, "--pp 3"), (3, "--dp 3"),
         (2, "--tp 2"), (2, "--cp 2"), (2, "--dp 2 --zero 3"), (1, "--microbatch 3"), (1, "--microbatch 12 --recompute full")]
DEVICES = 4
TIMEOUT = 3  # seconds that a worker waits for another that does not respond
LONG = bool(os.environ.get("OPTIMUS_LONG"))


class Switches(CommandLineTest):
    def setUp(self):
        super().setUp()
        self.text = self.write("text.txt", "".join(f"line {i} of {i * 7 % 31}, and so on\n" for i in range(900)))
        self.random = random.Random(int(os.environ.get("OPTIMUS_SEED", "1")))

    def plan(self, number, precision="fp64"):
        devices, args = PLANS[number]
        folder = self.folder / f"plan-{number}-{precision}"
        if not folder.exists():
            run("plan", *MODEL, "--vocab", 257, "--cluster", f"cpux{devices}", "--batch", 12, "--precision", precision, *args.split(), "--export", "optimus",
                "--out", folder)
        return folder / "plan.json"

    def train_args(self, name, *more):
        return ["train", *SHAPE, "--data", self.text, "--run", self.folder / name, "--devices", DEVICES, "--timeout", f"{TIMEOUT}s", *more]

    def rows(self, name):
        try:
            lines = (self.folder / name / "metrics.jsonl").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def one_device(self):
        if not (self.folder / "one").exists():
            run(*self.train_args("one", "--devices", 1))
        return self.rows("one")

    def expect_same(self, name):
        one, rows = self.one_device(), self.rows(name)
        self.assertEqual([row["step"] for row in rows], list(range(1, STEPS + 1)))
        for row, reference in zip(rows, one):
            for key in ("loss", "grad_norm"):
                self.assertAlmostEqual(row[key] / reference[key], 1, delta=1e-9, msg=f"{name} step {row['step']} {key}")

    def script(self, count, every):
        """Returns a --switch-at script of random plans; consecutive plans differ."""
        numbers = []
        while len(numbers) < count:
            number = self.random.randrange(len(PLANS))
            if numbers[-1:] != [number]:
                numbers.append(number)
        return ",".join(f"{(i + 1) * every}:{self.plan(number)}" for i, number in enumerate(numbers)), [PLANS[n][1] for n in numbers]

    def decisions(self, name):
        return json.loads(run("decisions", self.folder / name, "--json").stdout)

    def start(self, *args):
        process = subprocess.Popen([OPTIMUS, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def interrupt(self, process):
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 130, errors)

    def wait_for_step(self, name, step, process):
        until = time.time() + 60
        while not self.rows(name) or self.rows(name)[-1]["step"] < step:
            self.assertIsNone(process.poll(), process.poll() is not None and process.communicate()[1])
            self.assertLess(time.time(), until)
            time.sleep(0.01)

    def test_switches_by_a_script(self):
        for trial in range(30 if LONG else 2):
            script, args = self.script(6, 5)
            with self.subTest(trial=trial, plans=args):
                run(*self.train_args(f"script-{trial}", "--switch-at", script, "--precopy", "always" if trial % 2 else "never"))
                self.expect_same(f"script-{trial}")
                decisions = self.decisions(f"script-{trial}")
                self.assertEqual([d["step"] for d in decisions], [5, 10, 15, 20, 25, 30])
                for d in decisions:
                    self.assertEqual(d["kind"], "switch")
                    self.assertEqual(d["moved_bytes"], d["minimum_bytes"])
                    self.assertLessEqual(2 * d["precopied_bytes"], d["early_bytes"])
                # How much is sent early depends on the duration of a step, which may be too short for a message.
                if trial % 2 == 0:
                    self.assertEqual([d["early_bytes"] for d in decisions], [0] * 6)
                self.assertEqual([row["epoch"] for row in self.rows(f"script-{trial}")], [min(6, (step - 1) // 5) for step in range(1, STEPS + 1)])
                self.assertEqual(len(list((self.folder / f"script-{trial}" / "plans").iterdir())), 7)

    def test_switches_on_request(self):
        training = self.start(*self.train_args("asked", "--steps", 3000, "--save-every", 0))
        self.wait_for_step("asked", 3, training)
        status = json.loads(run("status", self.folder / "asked", "--json").stdout)
        self.assertTrue(status["running"])
        self.assertEqual([(w["rank"], w["state"]) for w in status["workers"]], [(r, "running") for r in range(DEVICES)])
        self.assertEqual(status["epoch"], 0)
        result = json.loads(run("switch", self.folder / "asked", "--plan", self.plan(2), "--json").stdout)
        self.assertRegex(result["text"], r"^step \d+: requested; switching .* → pp4.*; plan \w{4} → \w{4}, prepared .*, paused .* steps\), moved .* \(minimum .*\)$")
        self.assertEqual(json.loads(run("status", self.folder / "asked", "--json").stdout)["can_lose"], 0)
        run("switch", self.folder / "asked", "--plan", self.plan(13))  # one device: rank 0 may be unused
        run("switch", self.folder / "asked", "--plan", self.plan(1))
        # Rejected requests: the run continues unchanged.
        for name, args, reason in (("batch", ("--batch", 6), "the plan would change the batch from 12 to 6"), ("precision", ("--batch", 12, "--precision", "bf16"), "the precision from fp64 to bf16"),
                                 ("many", ("--batch", 12, "--dp", 6), "needs 6 devices, but the run has 4")):
            run("plan", *MODEL, "--vocab", 257, "--cluster", "cpux6" if name == "many" else "cpux4", "--precision", "fp64", *args, "--export", "optimus", "--out", self.folder / name)
            refused = run("switch", self.folder / "asked", "--plan", self.folder / name / "plan.json", code=1)
            self.assertIn(reason, refused.stderr)
        self.assertIn("already", run("switch", self.folder / "asked", "--plan", self.plan(1), code=1).stderr)
        run("switch", self.folder / "asked", "--plan", self.folder / "nothing.json", code=1)
        self.assertEqual(len(self.decisions("asked")), 3)
        self.interrupt(training)
        self.assertFalse(json.loads(run("status", self.folder / "asked", "--json").stdout)["running"])
        self.assertRegex(run("status", self.folder / "asked").stdout, r": not running, step \d+ of 3000, (.|\n)*continue .*train --resume ")
        self.assertIn("no training is running", run("switch", self.folder / "asked", "--plan", self.plan(2), code=1).stderr)
        # The resumed run uses the plan that was current when the run stopped.
        before = (self.folder / "asked" / "plan.json").read_text()
        steps = self.rows("asked")[-1]["step"] + 3
        run("train", "--resume", self.folder / "asked", "--steps", steps)
        self.assertEqual((self.folder / "asked" / "plan.json").read_text(), before)
        self.assertEqual(self.rows("asked")[-1]["epoch"], 3)

    def test_adds_redundant_copies_when_devices_fail_often(self):
        """The given plan stores every part of the state on one device only. With a mean time between failures of ten minutes a second
        copy is worth its cost, so a run with --redundancy auto switches to a plan with copies."""
        args = ["--steps", 100000, "--batch", 12]  # interrupted after the switch, however fast the machine is
        training = self.start(*self.train_args("unprotected", *args, "--devices", 3, "--plan", self.plan_without_copies(), "--policy", "rule",
                                               "--redundancy", "auto", "--mtbf", "10m"))
        self.wait_for_step("unprotected", 1, training)
        until = time.time() + 120

        def switches():
            return [one for one in self.decisions("unprotected") if "two copies of the optimizer state" in (one.get("evidence") or "")]

        while not switches():
            self.assertIsNone(training.poll(), training.poll() is not None and training.communicate()[1])
            self.assertLess(time.time(), until, self.decisions("unprotected"))
            time.sleep(0.05)
        self.wait_for_step("unprotected", self.rows("unprotected")[-1]["step"] + 40, training)
        self.interrupt(training)
        self.assertEqual(len(switches()), 1, self.decisions("unprotected"))
        rows = self.rows("unprotected")
        reference = self.start(*self.train_args("unprotected-one", *args, "--devices", 1))
        self.wait_for_step("unprotected-one", rows[-1]["step"], reference)
        self.interrupt(reference)
        self.assertEqual([row["step"] for row in rows], list(range(1, len(rows) + 1)))
        for row, expected in zip(rows, self.rows("unprotected-one")):
            self.assertAlmostEqual(row["loss"] / expected["loss"], 1, delta=1e-9, msg=f"step {row['step']}")

    def plan_without_copies(self):
        run("plan", *MODEL, "--vocab", 257, "--cluster", "cpux3", "--batch", 12, "--precision", "fp64", "--dp", 3, "--zero", 1, "--export", "optimus", "--out", self.folder / "unprotected-plan")
        return self.folder / "unprotected-plan" / "plan.json"

    def test_rejects_invalid_scripts(self):
        for script, code in (("nonsense", 2), ("0:plan.json", 2), ("5:", 2), (f"5:{self.plan(1)},5:{self.plan(2)}", 2), ("5:nowhere.json", 1), (f"5:{self.plan(1, 'fp32')}", 1)):
            run(*self.train_args("wrong", "--switch-at", script), code=code)
        self.assertFalse((self.folder / "wrong" / "metrics.jsonl").exists())

    def test_worker_killed_in_a_static_run(self):
        """Kills a worker at a random instant of a run that changes its plan continuously: before a switch, while a plan is prepared,
        while state is sent early, or while state moves."""
        for trial in range(40 if LONG else 3):
            script, args = self.script(*((9, 4) if trial % 2 else (18, 2)))  # with or without a step in which state is sent early
            name = f"killed-{trial}"
            training = self.start(*self.train_args(name, "--switch-at", script, "--save-every", 5, "--static", "--precopy", "always"))
            step = self.random.randrange(2, 34)
            self.wait_for_step(name, step, training)
            time.sleep(self.random.random() * 0.15)
            workers = json.loads((self.folder / name / "workers.json").read_text())["workers"]
            if not workers or training.poll() is not None:
                training.communicate()
                continue
            rank = self.random.randrange(DEVICES)
            os.kill(workers[rank]["pid"], signal.SIGKILL)
            start_time = time.time()
            with self.subTest(trial=trial, step=step, rank=rank, plans=args):
                _, errors = training.communicate(timeout=60)
                self.assertEqual(training.returncode, 1, errors)
                self.assertIn(f"rank {rank}", errors.splitlines()[-1])
                self.assertLess(time.time() - start_time, 3 * TIMEOUT + 15)
                run("train", "--resume", self.folder / name)
                self.expect_same(name)

    def test_worker_killed_in_an_elastic_run(self):
        """The same, but the other workers continue on their own."""
        for trial in range(40 if LONG else 2):
            script, args = self.script(*((9, 4) if trial % 2 else (18, 2)))  # with or without a step in which state is sent early
            name = f"goes-on-{trial}"
            training = self.start(*self.train_args(name, "--switch-at", script, "--save-every", 5, "--precopy", "always"))
            step = self.random.randrange(2, 34)
            self.wait_for_step(name, step, training)
            time.sleep(self.random.random() * 0.15)
            workers = json.loads((self.folder / name / "workers.json").read_text())["workers"]
            if workers and training.poll() is None:
                os.kill(self.random.choice(workers)["pid"], signal.SIGKILL)
            with self.subTest(trial=trial, step=step, plans=args):
                _, errors = training.communicate(timeout=90)
                self.assertEqual(training.returncode, 0, errors)
                self.expect_same(name)


if __name__ == "__main__":
    unittest.main()
