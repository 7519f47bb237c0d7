#!/usr/bin/env python3
"""Our training step beside torch.compile's on one GPU, taking turns: the table of docs/performance.md.

  tests/gpu/build.sh build/gpu/out build/gpu/headers           builds engine_bench where there is no CMake
  python3 bench/gpu/compare.py build/gpu/out/engine_bench --json table.json [--case gpt2-124m,...] [--rounds 2] [--roofline]

Both sides: bf16 weights and activations, fp32 master and moments, AdamW, clipping, two micro-batches a step, no dropout, random
tokens; the peer (peer_torch.py) accumulates gradients in bf16, ours in fp32. Ours goes before the peer, between its rounds
and behind it. A row has the medians, the ratio of the medians and, as its spread, the lowest of ours over the highest of the peer's and the other way round. With
--roofline gemm_limits.py measures the card's ceilings in the same run.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import bench_common as bc  # noqa: E402

MODELS = {"gpt2-124m": "gpt2", "gpt2-1.5b": "gpt2-xl", "llama-1b-2k": "llama3-8b", "llama-1b-4k": "llama3-8b", "llama-8b8l-4k": "llama3-8b"}


def ours(tool, case, steps, products):
    c = bc.CASES[case]
    words = dict(model=MODELS[case], layers=c["L"], hidden=c["d"], heads=c["H"], kv_heads=c["KV"], head_dim=c["d"] // c["H"], ffn=c["ffn"],
                 vocab=c["V"], seq=c["T"], max_positions=c["T"], microbatch=c["micro"][0], batch=c["micro"][0] * c["accum"], tied=int(c["tied"]),
                 precision="bf16", device="cuda", quick=1, warm=5, steps=steps, products=products)
    done = subprocess.run([tool] + [f"{k}={v}" for k, v in words.items()], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise SystemExit(f"{tool} {case}: {done.stderr.strip()[-400:]}")
    row = json.loads(done.stdout.splitlines()[-1])
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
        subprocess.run([sys.executable, os.path.join(HERE, "gemm_limits.py"), "--case", ",".join(cases), "--json", file.name], capture_output=True,
                       text=True, timeout=600)
        return {r["case"]: r["roofline_tok_s"] for r in json.load(open(file.name))["cases"] if not r.get("error")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tool")
    parser.add_argument("--case", default=",".join(bc.REAL_CASES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--products", default=os.path.join(tempfile.gettempdir(), "optimus-products.json"))
    parser.add_argument("--roofline", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    cases, table = options.case.split(","), []
    limits = roofline(cases) if options.roofline else {}
    print(f"{'case':14} {'ours':>9} {'(steps 10-90 %)':>19} {'compile':>9}  ratio (spread)       memory ours / theirs  of roofline  8192-cube TFLOP/s")
    for case in cases:
        mine, peers = [], []
        mine.append(ours(options.tool, case, options.steps, options.products))
        for _ in range(options.rounds):
            peer = theirs(case, options.steps)
            if peer:
                peers.append(peer)
            mine.append(ours(options.tool, case, options.steps, options.products))
        a, b = [r["tokens"] for r in mine], [r["tokens"] for r in peers]
        row = dict(case=case, ours=mine, theirs=peers, roofline=limits.get(case))
        table.append(row)
        line = f"{case:14} {statistics.median(a):9.0f} {min(r['slow'] for r in mine):9.0f}-{max(r['fast'] for r in mine):.0f}"
        if b:
            line += f" {statistics.median(b):9.0f}  {statistics.median(a) / statistics.median(b):5.3f} ({min(a) / max(b):.3f}-{max(a) / min(b):.3f})"
            line += f"  {max(r['bytes'] for r in mine) / 2**30:7.1f} / {max(r['bytes'] for r in peers) / 2**30:.1f} GiB"
            line += f"  {statistics.median(a) / limits[case]:5.3f}" if case in limits else "      -"
            line += f"  {min(r['products'] for r in peers):.0f}-{max(r['products'] for r in peers):.0f}"
        print(line, flush=True)
        if options.json:
            json.dump(table, open(options.json, "w"), indent=1)


if __name__ == "__main__":
    main()
