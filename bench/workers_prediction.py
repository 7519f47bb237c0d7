#!/usr/bin/env python3
"""Step times that the simulator predicts for two CPU workers at full speed, compared with measured ones: a dozen plans.

  bench/workers_prediction.py PATH_OF_OPTIMUS [--probe] [--plan NAME]… [--steps 6] [--json FILE]

--probe measures the machine first (optimus profile --hardware); otherwise it must have been measured. Each run is `optimus train
--profile` with the plan of the arguments; the prediction is the one that it prints. Nothing else may run meanwhile. """
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import parallel_bench as common

CASE = dict(layers=6, hidden=320, heads=4, vocab=8192, seq=256, batch=8)
PLANS = {
    "dp2": "--dp 2 --microbatch 2",
    "dp2, one micro-batch": "--dp 2 --microbatch 4",
    "dp2 zero1": "--dp 2 --zero 1 --microbatch 2",
    "dp2 zero2": "--dp 2 --zero 2 --microbatch 2",
    "dp2 zero3": "--dp 2 --zero 3 --microbatch 2",
    "dp2, full recompute": "--dp 2 --recompute full --microbatch 2",
    "tp2": "--tp 2 --microbatch 4",
    "pp2 gpipe": "--pp 2 --schedule gpipe --microbatch 1",
    "pp2 1f1b": "--pp 2 --schedule 1f1b --microbatch 1",
    "pp2 interleaved": "--pp 2 --schedule interleaved --chunks 3 --microbatch 1",
    "pp2 zero-bubble": "--pp 2 --schedule zero-bubble --microbatch 1",
    "cp2": "--cp 2 --microbatch 4",
}


def run_training(tool, args, steps, folder):
    run, trace = pathlib.Path(tempfile.mkdtemp(dir=folder)) / "run", f"{folder}/trace.json"
    command = [tool, "train", "--model", "gpt2", "--data", f"{folder}/tokens", "--run", str(run), "--steps", str(steps), "--profile", trace]
    for key in ("layers", "hidden", "heads", "vocab", "batch", "seq"):
        command += [f"--{key}", str(CASE[key])]
    command += ["--max-positions", str(CASE["seq"]), "--precision", "fp32", "--dropout", "0", "--device", "cpu", "--devices", "2", "--static"]
    command += ["--save-every", "0", "--sample", "0", "--validation", "0", *args.split()]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if completed.returncode != 0:
        sys.exit(f"{' '.join(command)}: {completed.stderr.strip()[-800:]}")
    seconds = [json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    profile = json.loads(pathlib.Path(trace).read_text())["profile"]
    return dict(measured=statistics.median(seconds[2:]), predicted=profile["step_seconds"]["predicted"], by=profile["predicted_by"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", help="optimus")
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--plan", action="append", choices=PLANS)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.probe:
        subprocess.run([options.tool, "profile", "--hardware", "--device", "cpu", "--precision", "fp32"], check=True, capture_output=True)
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        common.write_tokens(CASE, f"{folder}/tokens")
        print(f"{'plan':<24} {'measured':>10} {'predicted':>10} {'error':>8}")
        for name in options.plan or PLANS:
            row = rows[name] = run_training(options.tool, PLANS[name], options.steps, folder)
            row["error"] = row["predicted"] / row["measured"] - 1
            print(f"{name:<24} {row['measured']:>9.3f}s {row['predicted']:>9.3f}s {row['error']:>+8.1%}", flush=True)
            if options.json:
                pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))
    sizes = [abs(row["error"]) for row in rows.values()]
    print(f"by {row['by']}: mean error {statistics.mean(sizes):.1%}, largest {max(sizes):.1%}, {len(sizes)} cases")


if __name__ == "__main__":
    main()
