#!/usr/bin/env python3
"""Training speed and memory on several CPU workers compared with PyTorch's DDP, FSDP2 and DTensor tensor parallelism, all over Gloo.

usage: parallel_bench.py PATH_OF_OPTIMUS [--case NAME]… [--strategy dp|zero3|tp]… [--workers 2]… [--rounds 2] [--steps 5] [--json FILE]

Run with a Python that has torch (the Python environment of ./test). Ours is `optimus train --devices N`, as a user starts it, with tokens/s
from RUN/metrics.jsonl; the peer is N processes with a plain GPT-2. Both alternate, `rounds` times, and do the same work: the same
shape and batch, fp32, no dropout, one micro-batch per step, clipping by global norm, AdamW (PyTorch's fused one), cores / N threads
per worker. Speeds are medians over all measured steps with 10 and 90 % quantiles; the spread of the ratio compares ours at 10 % with theirs
at 90 % and vice versa. Memory is the maximum of one worker process until its last step (VmHWM), libraries included. "others" is the
fraction of the used CPU time that other processes took, the larger of both sides: more than a few percent invalidates a row.
engine_bench.py measures one device.
"""
import argparse
import contextlib
import json
import math
import os
import pathlib
import random
import resource
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

CASES = {
    # Four heads, because DTensor's tensor parallelism needs a number of heads that is divisible by the number of workers.
    "gpt2-10m": dict(layers=6, hidden=320, heads=4, vocab=8192, seq=256, batch=8),
    "gpt2-124m": dict(layers=12, hidden=768, heads=12, vocab=50257, seq=256, batch=4),
}
STRATEGIES = {
    "dp": (["--dp", "{n}", "--zero", "0"], "DDP"),
    "zero3": (["--dp", "{n}", "--zero", "3"], "FSDP2"),
    "tp": (["--tp", "{n}"], "DTensor"),
}
WARM = 2
TIMEOUT = 600


def peak_bytes(pid):
    """Returns the peak memory of a process; 0 if it has ended. Unlike ru_maxrss, it is reset by exec."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def cpu_seconds():
    """Returns the CPU seconds of all processes of the machine since its start, and of the children of this process that have ended."""
    fields = [int(word) for word in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    waited = resource.getrusage(resource.RUSAGE_CHILDREN)
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK"), waited.ru_utime + waited.ru_stime


def measure_with_load(run, *arguments):
    """Returns the result of a run, with the fraction of the used CPU time that other processes took meanwhile."""
    all_before, own_before = cpu_seconds()
    result = run(*arguments)
    all_after, own_after = cpu_seconds()
    return dict(result, others=max(0.0, 1 - (own_after - own_before) / max(all_after - all_before, 1e-9)))


def threads_of(workers):
    return max(1, len(os.sched_getaffinity(0)) // workers)


def build(c, workers):
    """A GPT-2 with tied embeddings; `workers` is the number of parts into which its heads are split, 1 for data parallelism."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.distributed.tensor import DTensor, Replicate

    d, heads = c["hidden"], c["heads"]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x):  # [batch, seq, hidden]
            # The rows of qkv are ordered by head, so that a slice of them consists of whole heads.
            qkv = self.qkv(self.n1(x)).view(*x.shape[:2], heads // workers, 3, d // heads)
            q, k, v = (part.transpose(1, 2) for part in qkv.unbind(3))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.token_embedding, self.positions = nn.Embedding(c["vocab"], d), nn.Embedding(c["seq"], d)
            self.blocks = nn.ModuleList(Block() for _ in range(c["layers"]))
            self.norm = nn.LayerNorm(d)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, ids, targets):
            x = self.token_embedding(ids) + self.positions.weight
            for block in self.blocks:
                x = block(x)
            x, head = self.norm(x).flatten(0, 1), self.token_embedding.weight
            if workers > 1:  # logits stay split by vocabulary, as in Optimus-Megatron
                x = DTensor.from_local(x, head.device_mesh, [Replicate()])
            return F.cross_entropy(x @ head.t(), targets.flatten())

    return Model()


def split(model, strategy, workers):
    """Splits the model with the peer's own tools."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel

    if strategy == "dp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    mesh = init_device_mesh("cpu", (workers,))
    if strategy == "zero3":
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    parallelize_module(model, mesh, {"words": RowwiseParallel(input_layouts=Replicate())})
    for block in model.blocks:
        parallelize_module(block, mesh, dict(qkv=ColwiseParallel(), out=RowwiseParallel(), up=ColwiseParallel(), down=RowwiseParallel()))
    return model


def clip(parameters, limit):
    """Clips by the norm of all gradients. Split and whole gradients are summed separately, as PyTorch requires."""
    import torch
    from torch.distributed.tensor import DTensor

    kinds = [[p for p in parameters if isinstance(p, DTensor) == is_split] for is_split in (True, False)]
    kinds = [kind for kind in kinds if kind]
    norms = [torch.nn.utils.get_total_norm([p.grad for p in kind]) for kind in kinds]
    norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    total = torch.linalg.vector_norm(torch.stack(norms))
    for kind in kinds:
        torch.nn.utils.clip_grads_with_norm_(kind, limit, total)


def optimizer_of(parameters):
    import torch
    from torch.distributed.tensor import DTensor

    groups = {}
    for p in parameters:  # the fused AdamW does not accept split and whole tensors in one group
        groups.setdefault((p.dim() > 1, isinstance(p, DTensor)), []).append(p)
    return torch.optim.AdamW([dict(params=ps, weight_decay=0.1 if is_matrix else 0.0) for (is_matrix, _), ps in groups.items()], lr=1e-4, betas=(0.9, 0.95), fused=True)


def peer_worker(args):
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor.parallel import loss_parallel

    c, strategy, workers, steps, rank, store = json.loads(args)
    torch.set_num_threads(threads_of(workers))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=workers)
    torch.manual_seed(0)
    model = split(build(c, workers if strategy == "tp" else 1), strategy, workers)
    parameters = list(model.parameters())
    optimizer = optimizer_of(parameters)
    torch.manual_seed(1 if strategy == "tp" else 1 + rank)
    shape = (c["batch"] if strategy == "tp" else c["batch"] // workers, c["seq"])
    seconds = []
    for _ in range(WARM + steps):
        ids, targets = torch.randint(0, c["vocab"], shape), torch.randint(0, c["vocab"], shape)
        start_time = time.perf_counter()
        with loss_parallel() if strategy == "tp" else contextlib.nullcontext():
            loss = model(ids, targets)
            loss.backward()
        clip(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start_time)
    loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
    result = dict(seconds=seconds[WARM:], peak_bytes=peak_bytes("self"), loss=loss.item())
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(result))


def run_peer(c, strategy, workers, steps, folder, program=__file__):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads_of(workers)), GLOO_SOCKET_IFNAME="lo")
    store = tempfile.mktemp(dir=folder)
    ranks = [
        subprocess.Popen([sys.executable, "-W", "ignore", str(program), "--worker", json.dumps([c, strategy, workers, steps, rank, store])], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(workers)
    ]
    try:
        answers = [rank.communicate(timeout=TIMEOUT) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, errors) in zip(ranks, answers):
        if rank.returncode != 0:
            sys.exit(f"{STRATEGIES[strategy][1]} exited with code {rank.returncode} (negative: signal): {errors.strip()[-2000:]}")
    results = [json.loads(out.splitlines()[-1]) for out, _ in answers]
    loss = next(r["loss"] for r in results if r["loss"] is not None)  # in a pipeline, that of its last stage
    return dict(results[0], peak_bytes=max(r["peak_bytes"] for r in results), loss=loss)


def write_tokens(c, prefix):
    """Writes random tokens in Megatron's format, one document of int32."""
    count = 64 * c["batch"] * c["seq"]
    source = random.Random(0)
    with open(f"{prefix}.bin", "wb") as file:
        file.write(struct.pack(f"<{count}i", *(source.randrange(c["vocab"]) for _ in range(count))))
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 1, 2) + struct.pack("<iqqq", count, 0, 0, 1))


def run_ours(tool, c, strategy, workers, steps, folder):
    run = pathlib.Path(tempfile.mkdtemp(dir=folder)) / "run"
    args = ["train", "--model", "gpt2", "--data", f"{folder}/{c['vocab']}", "--run", str(run), "--steps", str(WARM + steps)]
    for key in ("layers", "hidden", "heads", "vocab", "batch", "seq"):
        args += [f"--{key}", str(c[key])]
    args += ["--max-positions", str(c["seq"]), *([] if "--microbatch" in STRATEGIES[strategy][0] else ["--microbatch", str(c["batch"])]), "--precision", "fp32", "--dropout", "0", "--lr", "1e-4"]
    args += ["--device", "cpu", "--devices", str(workers), "--threads", str(threads_of(workers)), "--static"]
    args += ["--save-every", "0", "--sample", "0", "--validation", "0", *(word.format(n=workers) for word in STRATEGIES[strategy][0])]
    peaks, steps_seen = {}, 0
    with open(f"{folder}/said", "w+") as log_file:
        process = subprocess.Popen([tool, *args], stdout=log_file, stderr=log_file)
        try:
            until = time.monotonic() + TIMEOUT
            while process.poll() is None and time.monotonic() < until:
                if steps_seen < WARM + steps:  # after the last step comes the checkpoint, which the peer does not write
                    sample_memory(run, peaks)
                    with contextlib.suppress(OSError):
                        steps_seen = (run / "metrics.jsonl").read_bytes().count(b"\n")
                time.sleep(0.05)
        finally:
            process.terminate()
            process.wait()
        log_file.seek(0)
        if process.returncode != 0:
            sys.exit(f"optimus {' '.join(args)}: {log_file.read().strip()[-2000:]}")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return dict(seconds=[line["seconds"] for line in lines[WARM:]], peak_bytes=max(peaks.values(), default=0), loss=lines[-1]["loss"], plan=json.loads((run / "plan.json").read_text()))


def sample_memory(run, peaks):
    with contextlib.suppress(OSError, ValueError):  # missing or incomplete
        for worker in json.loads((run / "workers.json").read_text())["workers"]:
            peaks[worker["pid"]] = max(peaks.get(worker["pid"], 0), peak_bytes(worker["pid"]))


def speeds(c, results):
    """Returns the tokens/s at 10 %, the median and at 90 % of the measured steps of all rounds."""
    values = sorted(c["batch"] * c["seq"] / s for r in results for s in r["seconds"])
    tenths = statistics.quantiles(values, n=10, method="inclusive") if len(values) > 1 else values * 9
    return tenths[0], statistics.median(values), tenths[-1]


def row_of(name, strategy, workers, our_results, peer_results):
    c = CASES[name]
    for result in our_results + peer_results:  # nothing can be learned from random tokens: a loss far from ln(vocabulary) means different work
        if not 0.95 < result["loss"] / math.log(c["vocab"]) < 1.05:
            sys.exit(f"{name} {strategy}: loss {result['loss']}, expected about {math.log(c['vocab']):.2f}")
    a, b = speeds(c, our_results), speeds(c, peer_results)
    memory = [max(r["peak_bytes"] for r in rs) / 2**20 for rs in (our_results, peer_results)]
    others = max(r["others"] for r in our_results + peer_results)
    return dict(case=name, workers=workers, strategy=strategy, peer=STRATEGIES[strategy][1], ours=a, theirs=b, ratio=a[1] / b[1], low=a[0] / b[2], high=a[2] / b[0], memory_ours=memory[0], memory_theirs=memory[1], others=others, runs_ours=our_results, runs_theirs=peer_results)


FIGURES = f"{'ours':>7} (10–90 %)       {'theirs':>7} (10–90 %)        ratio (spread)      MiB a worker  others"


def format_figures(row):
    (al, a, ah), (bl, b, bh) = row["ours"], row["theirs"]
    return f"{a:7.0f} ({al:6.0f}–{ah:6.0f})  {b:7.0f} ({bl:6.0f}–{bh:6.0f})  {row['ratio']:5.2f} ({row['low']:.2f}–{row['high']:.2f})   {row['memory_ours']:5.0f} / {row['memory_theirs']:<5.0f} {row['others']:7.0%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", nargs="?", help="optimus")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--strategy", action="append", choices=STRATEGIES)
    parser.add_argument("--workers", action="append", type=int)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help=f"measured steps per round, after {WARM} warm-up steps")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.worker:
        return peer_worker(options.worker)
    if not options.tool:
        parser.error("the path of the program optimus is missing")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # an exception, so that workers and folders are removed
    rows = []
    print(f"{'case':10} {'workers':>7} {'strategy':6} {'peer':8} {FIGURES}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.case or CASES:
            c = CASES[name]
            write_tokens(c, f"{folder}/{c['vocab']}")
            for workers in options.workers or [2, 4]:
                for strategy in options.strategy or STRATEGIES:
                    our_results, peer_results = [], []
                    for _ in range(options.rounds):
                        our_results.append(measure_with_load(run_ours, options.tool, c, strategy, workers, options.steps, folder))
                        peer_results.append(measure_with_load(run_peer, c, strategy, workers, options.steps, folder))
                    row = row_of(name, strategy, workers, our_results, peer_results)
                    rows.append(row)
                    print(f"{name:10} {workers:7} {strategy:6} {row['peer']:8} {format_figures(row)}", flush=True)
                    if options.json:
                        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
