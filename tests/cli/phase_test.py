#!/usr/bin/env python3
"""Tests the phases of a training run, in which batches and sequences grow. Every plan must learn what one device learns, also when the run
is stopped and resumed, or a worker is lost."""
import json
import os
import signal
import subprocess
import time
import unittest
from random import Random

from command_line import OPTIMUS, CommandLineTest, run

SMALL = ("--model", "gpt2", "--layers", "2", "--hidden", "16", "--heads", "2", "--lr", "1e-2", "--warmup", "2", "--lr-schedule", "constant", "--sample", "0", "--threads", "1", "--precision", "fp64",
         "--save-every", "0", "--validation", "0")
RAMP = ("--batch", "16", "--batch-ramp", "4:16", "--seq", "16", "--seq-ramp", "8:12", "--steps", "24")
NOISE = ("--batch", "64", "--batch-ramp", "2:noise", "--seq", "16", "--steps", "80")
# fp64, another summation order, and the learning rate of tests/engine/parallel_test.cpp: its bound after 20 steps. The largest difference
# observed in 120 steps of such a ramp on three devices is 4.4e-16.
CLOSE = 1e-9


class PhaseTest(CommandLineTest):
    def setUp(self):
        super().setUp()
        random = Random(1)  # text with nothing to learn but words, so that its gradients are soon mostly noise
        vocabulary = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(1, 9))) for _ in range(400)]
        self.text = self.write("text.txt", "".join(" ".join(random.choices(vocabulary, k=9)) + "\n" for _ in range(900)))

    def train(self, name, *args, **options):
        folder = self.folder / name
        result = run("train", *SMALL, "--data", self.text, "--run", folder, *args, **options)
        return folder, result.stderr

    def exported(self, name, *args):
        run("plan", "--model", "gpt2", "--layers", "2", "--hidden", "16", "--heads", "2", "--vocab", "257", "--seq", "16", "--precision", "fp64", "--cluster", "cpux2", *args, "--export", "optimus", "--out",
            self.folder / name)
        return json.loads((self.folder / name / "plan.json").read_text())

    def rows(self, folder):
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

    def decisions(self, folder):
        return [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]

    def phases(self, folder):
        """Returns [(step, what changes)] of all phase changes, whatever caused them."""
        return [(decision["step"], decision["evidence"].split("phase: ")[1].split(", gradient")[0]) for decision in self.decisions(folder) if "phase: " in decision["evidence"]]

    def state(self, folder):
        newest = max((folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name.split("-")[1]))
        return json.loads((newest / "state.json").read_text())

    def expect_same(self, folder, other):
        """Compares steps, tokens, losses and the number of consumed samples: no sample is lost or used twice."""
        ours, theirs = self.rows(folder), self.rows(other)
        self.assertEqual([row["step"] for row in ours], list(range(1, len(theirs) + 1)))
        self.assertEqual([row["tokens"] for row in ours], [row["tokens"] for row in theirs])
        for key in ("loss", "grad_norm"):
            for row, reference in zip(ours, theirs):
                self.assertAlmostEqual(row[key] / reference[key], 1, delta=CLOSE, msg=f"{key} of step {row['step']}")
        self.assertEqual(self.state(folder)["samples"], self.state(other)["samples"])

    def test_all_plans_learn_what_one_device_learns(self):
        alone, stderr = self.train("alone", *RAMP, "--devices", "1")
        # Batches of 4, 8, 16 after steps 0, 8, 16; sequence lengths of 8, 16 after steps 0, 12.
        batches = [4] * 8 + [8] * 8 + [16] * 8
        lengths = [8] * 12 + [16] * 12
        self.assertEqual([row["tokens"] for row in self.rows(alone)], [b * s for b, s in zip(batches, lengths)])
        self.assertEqual(self.state(alone)["samples"], sum(batches))
        changes = [(8, "batch 4 → 8"), (12, "sequences of 8 → 16 tokens"), (16, "batch 8 → 16")]
        self.assertEqual(self.phases(alone), changes)
        for step, what in changes:
            self.assertIn(f"after step {step}: {what}", stderr, "missing in the announcement before the run")
            self.assertIn(f"step {step}: phase: {what}; ", stderr, "missing when the phase begins")
        # A given plan keeps its stages; the number of micro-batches follows the batch size.
        self.exported("pp", "--batch", "4", "--pp", "2", "--microbatch", "1")
        given, stderr = self.train("given", *RAMP, "--plan", self.folder / "pp" / "plan.json")
        self.expect_same(given, alone)
        self.assertEqual([json.loads((given / "plans" / f"{epoch}.json").read_text())["batch"] for epoch in range(4)], [4, 8, 8, 16])
        self.assertEqual(self.phases(given), changes)
        free, _ = self.train("free", *RAMP, "--devices", "3")
        self.expect_same(free, alone)
        self.assertEqual(self.phases(free), changes)

    def test_batches_grow_with_the_gradient_noise(self):
        alone, stderr = self.train("alone", *NOISE, "--devices", "1")
        self.assertIn("when the gradient noise scale reaches 4 samples: batch 2 → 4", stderr)
        changes = self.phases(alone)
        self.assertGreaterEqual(len(changes), 2, stderr)
        self.assertIn("gradient noise scale", self.decisions(alone)[0]["evidence"])
        self.assertIn("gradient noise scale", stderr.split("phase: batch 2 → 4")[1].splitlines()[0])
        begins = self.state(alone)["ramp"]["begins"]
        self.assertEqual(begins, [step for step, _ in changes])
        # Stopped between the decision for a phase and its beginning, then resumed on other devices.
        stop = begins[1] - 2
        stopped, _ = self.train("stopped", *NOISE[:-1], stop, "--dp", "2", "--zero", "1")
        self.assertEqual(self.state(stopped)["ramp"]["begins"], begins[:2])
        run("train", "--resume", stopped, "--steps", "80", "--devices", "3")
        self.expect_same(stopped, alone)
        self.assertEqual(self.phases(stopped), changes)
        # The ramp that was decided can also be specified in advance, and gives the same losses.
        values = [2, 4, 8, 16, 32, 64]
        final_batch = values[len(begins)]
        ramp_text = ",".join(["2", *(f"{values[i + 1]}@{step}" for i, step in enumerate(begins))])
        again, _ = self.train("again", "--seq", "16", "--steps", "80", "--batch", final_batch, "--batch-ramp", ramp_text, "--devices", "1")
        self.assertEqual([(row["loss"], row["tokens"]) for row in self.rows(again)], [(row["loss"], row["tokens"]) for row in self.rows(alone)])

    def test_lost_worker_does_not_change_the_losses(self):
        ramp = ("--batch", "48", "--batch-ramp", "3:noise", "--seq", "16", "--steps", "120")
        alone, _ = self.train("alone", *ramp, "--devices", "1")
        begins = self.state(alone)["ramp"]["begins"]
        folder = self.folder / "lost"
        process = subprocess.Popen([OPTIMUS, "train", *SMALL, *ramp, "--data", str(self.text), "--run", str(folder), "--devices", "3", "--dp", "3", "--zero", "0"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            end = time.monotonic() + 60
            while time.monotonic() < end and process.poll() is None and not ((folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").read_text().count("\n") >= begins[0] + 6):
                time.sleep(0.005)
            self.assertIsNone(process.poll(), process.stderr)
            os.kill(json.loads((folder / "workers.json").read_text())["workers"][2]["pid"], signal.SIGKILL)
            _, stderr = process.communicate(timeout=100)
        finally:
            process.kill()
        self.assertEqual(process.returncode, 0, stderr)
        self.expect_same(folder, alone)
        self.assertEqual(self.phases(folder), self.phases(alone))
        lost = [decision["step"] for decision in self.decisions(folder) if decision["kind"] == "recover"]
        self.assertEqual(len(lost), 1, stderr)
        self.assertLess(begins[0], lost[0])
        self.assertLess(lost[0], begins[-1], "the worker is expected to be lost in the middle of the ramp")

    def test_reports_usage_errors(self):
        for args, contains in ((("--batch-ramp", "4"), "4 is not of the form FROM:STEPS"), (("--batch-ramp", "16:9"), "below the final value 16"), (("--seq-ramp", "64:9"), "below the final value 16"),
                            (("--batch-ramp", "1:3"), "grows 4 times, which is more than its 3 steps"), (("--batch-ramp", "4,8@9"), "ends with 8 instead of the 16"),
                            (("--batch-ramp", "4:noise"), "remove one of the two flags"), (("--batch-ramp", "4:noise", "--seq-ramp", "", "--switch-at", "9:x.json"), "remove one of them")):
            self.expect_error("train", *SMALL, *RAMP, "--data", self.text, "--run", self.folder / "no", *args, contains=(contains,), code=2)
        # A batch of one cannot be divided between two pipelines.
        plan = self.exported("dp", "--batch", "4", "--dp", "2", "--pp", "1")
        pipeline = plan["pipelines"][0]
        plan["pipelines"] = [{**pipeline, "stages": [{**pipeline["stages"][0], "devices": str(device)}], "microbatches": [{**pipeline["microbatches"][0], "sequences": 2, "count": 1}]} for device in (0, 1)]
        path = self.write("wide.json", json.dumps(plan))
        self.expect_error("train", *SMALL, "--data", self.text, "--run", self.folder / "no", "--seq", "16", "--steps", "20", "--plan", path, "--batch-ramp", "1:9", contains=("wide.json for batch 1: ",), code=1)


if __name__ == "__main__":
    unittest.main()
