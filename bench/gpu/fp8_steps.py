#!/usr/bin/env python3
"""Steps of the benchmark cases in bf16 and in fp8, by engine_bench on random tokens: tokens per second, and the gain of fp8.

The two alternate, so that a GPU that warms up affects both equally. fp8 is in all layers ("all"), or in all but the first and the last
("inner", the default of --precision fp8).

  fp8_steps.py ENGINE_BENCH [--case a,b] [--layers all,inner] [--rounds 2] [--steps 10] [--selective N] [--hardware FILE] [--json FILE]

HARDWARE, the measurement of the GPU by `engine_bench probe=FILE device=cuda precision=fp8` or `optimus profile --hardware`, adds the
simulator's prediction. """
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_common as bc  # noqa: E402
import plans  # noqa: E402


def measure(args, folder, case, fp8):
    path = plans.write_plan(os.path.join(folder, "plan.json"), case, fp8=fp8, selective=args.selective)
    words = {k.replace("-", "_"): v for k, v in plans.model_words(case).items()}
    words.update(tied=int(bc.CASES[case]["tied"]), plan=path, device="cuda", quick=1, warm=6, steps=args.steps, losses=1,
                 products=os.path.join(folder, "products.json"))
    if args.hardware:
        words["hardware"] = args.hardware
    run = subprocess.run([args.bench] + ["%s=%s" % w for w in words.items()], capture_output=True, text=True)
    if run.returncode:
        return dict(error=(run.stderr or run.stdout)[-300:].strip())
    return json.loads(run.stdout.splitlines()[-1])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("bench")
    ap.add_argument("--case")
    ap.add_argument("--layers", default="all,inner")
    ap.add_argument("--rounds", type=int, default=2)
    ap.add_argument("--steps", type=int, default=10)
    ap.add_argument("--selective", type=int)
    ap.add_argument("--hardware")
    ap.add_argument("--json")
    args = ap.parse_args()
    kinds = [None] + args.layers.split(",")
    rows = []
    print("%-14s %-6s %10s %6s %9s %9s %9s %9s" % ("case", "fp8", "tokens/s", "gain", "peak GiB", "loss 1", "last", "predicted"), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for case in args.case.split(",") if args.case else bc.REAL_CASES:
            results = {kind: [] for kind in kinds}
            for _ in range(args.rounds):
                for kind in kinds:
                    results[kind].append(measure(args, folder, case, kind))
            for kind in kinds:
                row = dict(case=case, fp8=kind, runs=results[kind])
                rows.append(row)
                errors = [r["error"] for r in results[kind] if "error" in r]
                if errors:
                    print("%-14s %-6s %s" % (case, kind, errors[0]), flush=True)
                    continue
                row["tokens_per_second"] = statistics.median(r["tokens_per_second"] for r in results[kind])
                baseline = rows[-1 - kinds.index(kind)].get("tokens_per_second")
                row["gain"] = row["tokens_per_second"] / baseline if baseline else None
                last = results[kind][-1]
                predicted = "%+.1f %%" % (100 * (last["predicted_seconds"] / last["step_seconds"] - 1)) if args.hardware else ""
                print("%-14s %-6s %10.0f %6.3f %9.1f %9.4f %9.4f %9s  %s" % (
                    case, kind, row["tokens_per_second"], row["gain"] or 0, last["peak_bytes"] / 2 ** 30, last["losses"][0],
                    last["losses"][-1], predicted, "" if "replayed" in last["recording"] else last["recording"]), flush=True)
            if args.json:
                with open(args.json, "w") as f:
                    json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
