#!/usr/bin/env python3
"""Our training compared with torch.compile on one GPU, alternating: the table of docs/results/performance.md.

  python3 bench/gpu/compare.py OPTIMUS TOKENS [--bench ENGINE_BENCH] [--json table.json] [--case gpt2-124m,...] [--rounds 1] [--roofline]

OPTIMUS is the program itself: each case is `optimus train --plan` with the plan of plans.py, and samples from TOKENS (the prefix of a
token file in Megatron's format; real text). Only the steps after the first ones, in which GEMMs are tuned, count, as recorded in
metrics.jsonl; then the run is ended. With --bench the same plan also runs in engine_bench, which reports the peak of allocated memory
after the first steps, as the peer does, and the speed once more.

Both sides: bf16 weights and activations, fp32 masters and moments, AdamW, clipping, two micro-batches per step, no dropout; the peer
(peer_torch.py) gets random tokens and accumulates gradients in bf16, ours in fp32. Ours runs before the peer and after each of its rounds.
With --roofline, gemm_limits.py measures the ceilings of the GPU in the same run.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import bench_common as bc  # noqa: E402
import plans  # noqa: E402

WARM = 5


def train_speed(optimus, tokens, case, plan, steps, folder):
    """Returns the tokens per second of the steps of `optimus train`."""
    c, run = bc.CASES[case], tempfile.mkdtemp(dir=folder)
    args = [optimus, "train", "--data", tokens, "--tokenizer", "bytes", "--plan", plan, "--dropout", "0", "--steps", "100000", "--sample", "0",
             "--run", os.path.join(run, "run"), "--device", "cuda", "--devices", "1", "--tied" if c["tied"] else "--untied"]
    for name, value in plans.model_words(case).items():
        args += ["--" + name, str(value)]
    log = open(os.path.join(run, "log"), "w+")
    process = subprocess.Popen(args, stdout=log, stderr=log)
    metrics, start_time, rows = os.path.join(run, "run", "metrics.jsonl"), time.time(), []
    while len(rows) < WARM + steps and process.poll() is None and time.time() - start_time < 300:
        time.sleep(0.25)
        if os.path.exists(metrics):
            rows = [json.loads(line) for line in open(metrics) if line.endswith("\n")]
    process.kill()
    process.wait()
    if len(rows) < WARM + steps:
        log.seek(0)
        raise SystemExit("%s: %s" % (" ".join(args), log.read()[-800:]))
    return row_of([r["tokens_per_second"] for r in rows[WARM:WARM + steps]])


def row_of(rates):
    rates = sorted(rates)
    at = lambda fraction: rates[int(fraction * (len(rates) - 1))]  # noqa: E731
    return dict(tokens=statistics.median(rates), slow=at(0.1), fast=at(0.9))


def run_engine_bench(bench, case, plan, steps, products):
    c = bc.CASES[case]
    args = {k.replace("-", "_"): v for k, v in plans.model_words(case).items()}
    args.update(tied=int(c["tied"]), plan=plan, precision="bf16", device="cuda", quick=1, warm=WARM, steps=steps, products=products)
    completed = subprocess.run([bench] + [f"{k}={v}" for k, v in args.items()], capture_output=True, text=True, timeout=300)
    if completed.returncode != 0:
        raise SystemExit(f"{bench} {case}: {completed.stderr.strip()[-400:]}")
    row = json.loads(completed.stdout.splitlines()[-1])
    return dict(tokens=row["tokens_per_second"], slow=row["slow"], fast=row["fast"], bytes=row["peak_bytes"], recording=row["recording"])


def theirs(case, steps):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([sys.executable, os.path.join(HERE, "peer_torch.py"), "--case", case, "--mode", "compile", "--steps", str(steps), "--json",
                        file.name], capture_output=True, text=True, timeout=600)
        rows = json.load(open(file.name))
    good = [r for r in rows if not r.get("error")]
    if not good:
        return None
    return dict(tokens=good[-1]["tok_s"], bytes=good[-1]["peak_alloc_gib"] * 2**30, products=good[-1]["gemm"]["sustained"])


def roofline(cases):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([sys.executable, os.path.join(HERE, "gemm_limits.py"), "--case", ",".join(cases), "--json", file.name, "--no-fp8", "--budget", "150"],
                       capture_output=True, text=True, timeout=600)
        return {r["case"]: r["roofline_tok_s"] for r in json.load(open(file.name))["cases"] if not r.get("error")}


def line_of(row):
    our_results, peer_results = row["ours"], row["theirs"]
    a, b = [r["tokens"] for r in our_results], [r["tokens"] for r in peer_results]
    line = f"{row['case']:14} {statistics.median(a):9.0f} {min(r['slow'] for r in our_results):9.0f}-{max(r['fast'] for r in our_results):.0f}"
    if not b:
        return line
    line += f" {statistics.median(b):9.0f}  {statistics.median(a) / statistics.median(b):5.3f} ({min(a) / max(b):.3f}-{max(a) / min(b):.3f})"
    memory = max((r["bytes"] for r in row["bench"]), default=0)
    line += f"  {memory / 2**30:7.2f} / {max(r['bytes'] for r in peer_results) / 2**30:.2f} GiB"
    line += f"  {statistics.median(a) / row['roofline']:5.3f}" if row["roofline"] else "      -"
    line += f"  {min(r['products'] for r in peer_results):.0f}-{max(r['products'] for r in peer_results):.0f}"
    return line + "".join(f"  engine_bench {r['tokens']:.0f}" for r in row["bench"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("optimus")
    parser.add_argument("tokens")
    parser.add_argument("--bench")
    parser.add_argument("--case", default=",".join(bc.REAL_CASES))
    parser.add_argument("--rounds", type=int, default=1, help="0: only ours")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--once", action="store_true", help="run ours only before the peer")
    parser.add_argument("--products", default=os.path.join(tempfile.gettempdir(), "optimus-products.json"))
    parser.add_argument("--roofline", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    cases, table, folder = options.case.split(","), [], tempfile.mkdtemp()
    limits = roofline(cases) if options.roofline else {}
    print(f"{'case':14} {'ours':>9} {'(steps 10-90 %)':>19} {'compile':>9}  ratio (spread)       memory ours / theirs  of roofline  8192-cube TFLOP/s")
    for case in cases:
        plan = plans.write_plan(os.path.join(folder, case + ".json"), case)
        row = dict(case=case, ours=[], theirs=[], bench=[], roofline=limits.get(case))
        row["ours"].append(train_speed(options.optimus, options.tokens, case, plan, options.steps, folder))
        if options.bench:
            row["bench"].append(run_engine_bench(options.bench, case, plan, options.steps, options.products))
        for _ in range(options.rounds):
            peer = theirs(case, options.steps)
            if peer:
                row["theirs"].append(peer)
            if not options.once:
                row["ours"].append(train_speed(options.optimus, options.tokens, case, plan, options.steps, folder))
        table.append(row)
        print(line_of(row), flush=True)
        if options.json:
            json.dump(table, open(options.json, "w"), indent=1)


if __name__ == "__main__":
    main()
