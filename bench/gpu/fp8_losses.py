#!/usr/bin/env python3
"""Loss curves on real text in bf16 and in fp8, from the same initial weights on the same samples: the engine on one GPU.

  fp8_losses.py ENGINE_BENCH TOKENS --out FOLDER [--case gpt2-124m] [--runs bf16:1,bf16:2,all:1,inner:1] [--steps 1000] [--lr RATE]

TOKENS is the prefix of a token file in Megatron's format. A run is a precision (bf16; fp8 in "all" layers, or in "inner" ones, all but
the first and the last) and a seed, of the weights and of the order of samples. A row has the mean loss of the last 50 steps, and its
difference from bf16 with the same seed; the seeds of bf16 show its spread. RATE defaults to that in SIZES.
"""
import argparse
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_common as bc  # noqa: E402
import plans  # noqa: E402

SIZES = {"gpt2-124m": dict(micro=8, accum=2, lr=6e-4), "llama-1b-2k": dict(micro=1, accum=2, lr=2e-4)}
TAIL = 50


def train(options, case, kind, seed):
    size, folder = SIZES[case], options.out
    plan = plans.write_plan(os.path.join(folder, "%s-%s.json" % (case, kind)), case, selective=0, micro=size["micro"], accum=size["accum"],
                            fp8=None if kind == "bf16" else kind)
    args = {k.replace("-", "_"): v for k, v in plans.model_words(case).items()}
    args.update(tied=int(bc.CASES[case]["tied"]), plan=plan, device="cuda", quick=1, warm=0, steps=options.steps, losses=1,
                 tokens=options.tokens, seed=seed, lr=options.lr or size["lr"], products=os.path.join(folder, "products.json"))
    run = subprocess.run([options.bench] + ["%s=%s" % w for w in args.items()], capture_output=True, text=True)
    if run.returncode:
        raise SystemExit("%s %s: %s" % (case, kind, (run.stderr or run.stdout)[-600:]))
    return json.loads(run.stdout.splitlines()[-1])["losses"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("tokens")
    parser.add_argument("--out", required=True)
    parser.add_argument("--case", default="gpt2-124m")
    parser.add_argument("--runs", default="bf16:1,bf16:2,all:1,inner:1")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float)
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    result = {}
    print("%-12s %-6s %4s %9s %9s %9s  %s" % ("case", "in", "seed", "first", "last 50", "to bf16", "every 100th step"), flush=True)
    for case in options.case.split(","):
        baseline = {}
        for kind, seed in (run.split(":") for run in options.runs.split(",")):
            losses = result["%s %s %s" % (case, kind, seed)] = train(options, case, kind, seed)
            last = sum(losses[-TAIL:]) / len(losses[-TAIL:])
            if kind == "bf16":
                baseline[seed] = last
            print("%-12s %-6s %4s %9.4f %9.4f %9s  %s" % (
                case, kind, seed, losses[0], last, "%+.2f %%" % (100 * (last / baseline[seed] - 1)) if seed in baseline else "",
                " ".join("%.3f" % loss for loss in losses[99::100])), flush=True)
            with open(os.path.join(options.out, "fp8_losses.json"), "w") as file:
                json.dump(result, file)


if __name__ == "__main__":
    main()
