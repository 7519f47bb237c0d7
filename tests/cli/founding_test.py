#!/usr/bin/env python3
"""Runs the example examples/founding.sh with real workers: 24 layers on 16 workers, pp4 x tp2 x dp2; then three stages; then large
batches on replicas of the model; then a worker is lost. The first change is scripted here, because 16 workers on a few cores do not
behave like devices; the decision itself is tested in tests/adapt/founding_test.cpp."""
import json
import os
import pathlib
import subprocess
import unittest

from command_line import CommandLineTest

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 20
CLOSE = 1e-9  # fp64, another summation order, 20 steps: as in tests/engine/parallel_test.cpp


def num_listed(devices):
    """Returns the number of devices in a list such as "0..3,7"."""
    ends = [[int(end) for end in part.split("..")] for part in devices.split(",")]
    return sum(end[-1] - end[0] + 1 for end in ends)


class FoundingTest(CommandLineTest):
    def test_losses_equal_those_of_one_device(self):
        result = subprocess.run(["bash", str(ROOT / "examples" / "founding.sh"), str(self.folder)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, env=os.environ)
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        rows = {name: [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()] for name in ("run", "alone")}
        self.assertEqual([row["step"] for row in rows["run"]], list(range(1, STEPS + 1)))
        self.assertEqual([row["tokens"] for row in rows["run"]], [row["tokens"] for row in rows["alone"]])
        # The last sequence of the data is shorter; it is consumed in the second phase.
        self.assertEqual([round(row["tokens"] / 16) for row in rows["run"]], [8] * 12 + [256] * 8)
        for key in ("loss", "grad_norm"):
            for row, one in zip(rows["run"], rows["alone"], strict=True):
                self.assertAlmostEqual(row[key] / one[key], 1, delta=CLOSE, msg=f"{key} of step {row['step']}")
        decisions = [json.loads(line) for line in (self.folder / "run" / "decisions.jsonl").read_text().splitlines()]
        self.assertEqual([(one["step"], one["kind"], one["evidence"]) for one in decisions[:2]], [(6, "switch", "scripted"), (12, "switch", "phase: batch 8 → 256")])
        self.assertEqual([one["kind"] for one in decisions[2:3]], ["recover"], result.stderr)
        self.assertGreaterEqual(decisions[2]["step"], 15)
        plans = [json.loads((self.folder / "run" / "plans" / f"{epoch}.json").read_text()) for epoch in range(4)]
        devices = [sum(num_listed(stage["devices"]) for pipeline in plan["pipelines"] for stage in pipeline["stages"]) for plan in plans]
        stages = [len(plan["pipelines"][0]["stages"]) for plan in plans]
        self.assertEqual(stages[:3], [4, 3, 1], "large batches are expected to use replicas instead of stages")
        self.assertEqual(devices[:3], [16, 12, 16])
        self.assertLess(devices[3], 16)


if __name__ == "__main__":
    unittest.main()
