#!/usr/bin/env python3
"""Checks that the demo learns in bf16 and fp16 what it learns in fp32: after 200 completed steps (OPTIMUS_LONG=1) the validation loss is
within 1 %, after 100 steps within the difference between seeds. Needs $OPTIMUS."""
import json
import os
import subprocess
import sys
import tempfile

# 200 steps and 1 %: the project's promise. After 100 steps, fp32 itself ends at 3.240, 3.216 and 3.379 with seeds 1, 2 and 3: 5 % apart.
STEPS, ALLOWED = (200, 0.01) if os.environ.get("OPTIMUS_LONG") else (100, 0.05)


def train(run, precision, steps):
    args = ["train", "--steps", str(steps), "--precision", precision, "--run", run, "--sample", "0", "--static", "--devices", "1", "--threads", "1"]
    subprocess.run([os.environ["OPTIMUS"], *args], check=True, capture_output=True, timeout=1200)
    rows = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"))]
    return rows[-1]["validation_loss"], sum(row.get("skipped", False) for row in rows)


with tempfile.TemporaryDirectory() as folder:
    losses = {}
    for precision in ("fp32", "bf16", "fp16"):
        losses[precision], skipped = train(os.path.join(folder, precision), precision, STEPS)
        if skipped:  # fp16 may overflow while it searches for its loss scale: add the skipped steps
            losses[precision], skipped = train(os.path.join(folder, precision + "-again"), precision, STEPS + skipped)
        print(f"{precision}: validation loss {losses[precision]:.4f}, {skipped} steps skipped")
    worst = max(abs(losses[p] / losses["fp32"] - 1) for p in ("bf16", "fp16"))
    print(f"largest difference from fp32: {100 * worst:.2f} %")
    sys.exit(worst > ALLOWED)
