#!/usr/bin/env python3
"""Training speed and memory of our engine compared with PyTorch, eager and compiled, on the CPU: tokens/s, with ratio and spread.

usage: engine_bench.py PATH_OF_BENCH_ENGINE [--case NAME]… [--precision fp32|bf16]… [--rounds 3] [--mode eager|compile]… [--json FILE]

Run with a Python that has torch (the Python environment of ./test). Both sides alternate, in one process each, `rounds` times; the ratio
is of medians, its spread from the best and worst pairing of rounds. Both do the same work: forward, backward, clipping by global norm,
AdamW (PyTorch's fused one), the same micro-batches, 2 threads. With bf16, PyTorch has bf16 parameters and activations with fp32 masters
and moments (as the GPU peer). Peak memory is that of the process. """
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

CASES = {
    # For bf16 on CPUs without bf16 instructions, on which PyTorch's GEMMs run at a tenth of a GFLOP/s.
    "gpt2-tiny": dict(arch="gpt2", layers=2, hidden=128, heads=2, kv_heads=2, ffn=512, vocab=512, seq=64, batch=4, microbatch=4),
    "gpt2-10m": dict(arch="gpt2", layers=6, hidden=320, heads=5, kv_heads=5, ffn=1280, vocab=8192, seq=256, batch=8, microbatch=8),
    "gpt2-124m": dict(arch="gpt2", layers=12, hidden=768, heads=12, kv_heads=12, ffn=3072, vocab=50257, seq=256, batch=4, microbatch=2),
    "llama-100m": dict(arch="llama", layers=12, hidden=640, heads=10, kv_heads=5, ffn=1728, vocab=32000, seq=256, batch=4, microbatch=2),
}


def build(c):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    d, H, KV, f, V, T = c["hidden"], c["heads"], c["kv_heads"], c["ffn"], c["vocab"], c["seq"]
    hd, is_gpt = d // H, c["arch"] == "gpt2"

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            norm = (lambda: nn.LayerNorm(d)) if is_gpt else (lambda: nn.RMSNorm(d, eps=1e-5))
            self.n1, self.n2 = norm(), norm()
            self.qkv = nn.Linear(d, (H + 2 * KV) * hd, bias=is_gpt)
            self.out = nn.Linear(H * hd, d, bias=is_gpt)
            self.up = nn.Linear(d, f if is_gpt else 2 * f, bias=is_gpt)
            self.down = nn.Linear(f, d, bias=is_gpt)

        def forward(self, x, cos, sin):
            B = x.size(0)
            q, k, v = self.qkv(self.n1(x)).view(B, T, H + 2 * KV, hd).split([H, KV, KV], 2)
            if not is_gpt:
                def rotate(t):
                    a, b = t.chunk(2, -1)
                    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
                q, k = rotate(q), rotate(k)
            y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=H != KV)
            x = x + self.out(y.transpose(1, 2).reshape(B, T, H * hd))
            if is_gpt:
                return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))
            gate, up = self.up(self.n2(x)).chunk(2, -1)
            return x + self.down(F.silu(gate) * up)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.token_embedding = nn.Embedding(V, d)
            self.positions = nn.Embedding(T, d) if is_gpt else None
            self.blocks = nn.ModuleList(Block() for _ in range(c["layers"]))
            self.norm = nn.LayerNorm(d) if is_gpt else nn.RMSNorm(d, eps=1e-5)
            angle = torch.outer(torch.arange(T).float(), 1e4 ** -(torch.arange(0, hd, 2).float() / hd))
            self.register_buffer("cos", angle.cos()[None, :, None, :])
            self.register_buffer("sin", angle.sin()[None, :, None, :])
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, ids, targets):
            x = self.token_embedding(ids)
            if is_gpt:
                x = x + self.positions.weight
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            logits = self.norm(x) @ self.token_embedding.weight.t()
            return F.cross_entropy(logits.view(-1, V).float(), targets.view(-1))

    return Model()


def run_peer(c, precision, mode, threads, warm, steps):
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = build(c)
    if precision == "bf16":
        model = model.bfloat16()
    masters = [p.detach().float().clone() if precision == "bf16" else p for p in model.parameters()]
    groups = [dict(params=[m for m in masters if m.dim() > 1], weight_decay=0.1), dict(params=[m for m in masters if m.dim() < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)
    run = torch.compile(model, dynamic=False) if mode == "compile" else model
    ids = [torch.randint(0, c["vocab"], (c["microbatch"], c["seq"])) for _ in range(8)]
    rounds, seconds, n = c["batch"] // c["microbatch"], [], 0
    for step in range(warm + steps):
        start_time = time.perf_counter()
        for _ in range(rounds):
            (run(ids[n % 8], ids[(n + 1) % 8]) / rounds).backward()
            n += 1
        if precision == "bf16":
            for master, p in zip(masters, model.parameters()):
                master.grad = p.grad.float()
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        if precision == "bf16":
            with torch.no_grad():
                for master, p in zip(masters, model.parameters()):
                    p.copy_(master)
        model.zero_grad(set_to_none=True)
        optimizer.zero_grad(set_to_none=True)
        if step >= warm:
            seconds.append(time.perf_counter() - start_time)
    tokens = c["batch"] * c["seq"]
    return dict(tokens_per_second=tokens / statistics.median(seconds), peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def run_ours(tool, c, precision, threads, warm, steps):
    args = [f"{key}={c[key]}" for key in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "batch", "microbatch")]
    args += ["model=" + ("gpt2" if c["arch"] == "gpt2" else "llama2-7b"), f"max_positions={c['seq']}", "tied=1", f"precision={precision}", f"threads={threads}", f"warm={warm}", f"steps={steps}"]
    return json.loads(subprocess.run([tool, *args], check=True, capture_output=True, text=True).stdout)


def worker(args):
    c, precision, mode, threads, warm, steps = json.loads(args)
    print(json.dumps(run_peer(c, precision, mode, threads, warm, steps)))


def run_separately(*arguments):
    completed = subprocess.run([sys.executable, "-W", "ignore", __file__, "--worker", json.dumps(arguments)], capture_output=True, text=True, timeout=1200)
    return json.loads(completed.stdout.splitlines()[-1]) if completed.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool", nargs="?")
    parser.add_argument("--worker")
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--precision", action="append", choices=["fp32", "bf16"])
    parser.add_argument("--mode", action="append", choices=["eager", "compile"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker)
    rows = []
    print(f"{'case':12} {'type':5} {'peer':8} {'ours':>9} {'theirs':>9}  ratio (spread)         memory ours / theirs")
    for name in options.case or CASES:
        for precision in options.precision or ["fp32", "bf16"]:
            c, modes = CASES[name], options.mode or ["eager", "compile"]
            our_results, peer_results = [], {mode: [] for mode in modes}
            for _ in range(options.rounds):
                our_results.append(run_ours(options.tool, c, precision, options.threads, 2, options.steps))
                for mode in modes:
                    result = run_separately(c, precision, mode, options.threads, 2, options.steps)
                    if result:
                        peer_results[mode].append(result)
            for mode, results in peer_results.items():
                if not results:
                    print(f"{name:12} {precision:5} {mode:8} failed")
                    continue
                a, b = [r["tokens_per_second"] for r in our_results], [r["tokens_per_second"] for r in results]
                ratio, low, high = statistics.median(a) / statistics.median(b), min(a) / max(b), max(a) / min(b)
                memory = [max(r["peak_bytes"] for r in rs) / 2**20 for rs in (our_results, results)]
                rows.append(dict(case=name, precision=precision, peer=mode, ours=statistics.median(a), theirs=statistics.median(b), ratio=ratio, low=low, high=high, memory_ours=memory[0], memory_theirs=memory[1]))
                print(f"{name:12} {precision:5} {mode:8} {statistics.median(a):9.1f} {statistics.median(b):9.1f}  {ratio:5.2f} ({low:.2f}–{high:.2f})   {memory[0]:8.0f} / {memory[1]:.0f} MiB", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
