#!/usr/bin/env python3
"""Pipelines on CPU workers compared with torch.distributed.pipelining: GPipe, 1F1B, interleaved, zero-bubble, over Gloo.

usage: pipeline_bench.py PATH_OF_OPTIMUS [--schedule NAME]… [--workers 2]… [--rounds 2] [--steps 4] [--json FILE]

Run with a Python that has torch. Ours is `optimus train --devices N --pp N --schedule NAME`, the peer N processes with the same GPT-2,
cut into the same number of stages (chunks: two per worker if the schedule has chunks), untied because PyTorch cannot tie parameters of
two stages: the same batch in as many micro-batches, fp32, no dropout, AdamW, clipping by the norm of all stages. parallel_bench.py
explains how speeds, spread, memory and "others" are measured. Zero-bubble: theirs is the interleaved one (the plain H1 is not in
PyTorch), ours H1 with one chunk a stage. """
import argparse
import json
import os
import pathlib
import sys
import tempfile
import time

import parallel_bench as common

CASE = dict(layers=8, hidden=320, heads=4, vocab=8192, seq=256, batch=8)
SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B", "zero-bubble": "ScheduleInterleavedZeroBubble"}


def stage_module(c, index, count):
    """Stage `index` of `count`: an equal share of the layers; the embedding in the first, norm and head in the last."""
    import torch.nn as nn

    whole = common.build(c, 1)
    first, last = index * c["layers"] // count, (index + 1) * c["layers"] // count

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.token_embedding = whole.token_embedding if index == 0 else None
            self.positions = whole.positions if index == 0 else None
            self.blocks = whole.blocks[first:last]
            self.norm = whole.norm if index + 1 == count else None
            self.head = nn.Linear(c["hidden"], c["vocab"], bias=False) if index + 1 == count else None

        def forward(self, x):
            if self.token_embedding is not None:
                x = self.token_embedding(x) + self.positions.weight
            for block in self.blocks:
                x = block(x)
            return x if self.head is None else self.head(self.norm(x))

    return Part()


def peer_worker(args):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.pipelining import PipelineStage, schedules

    c, name, workers, steps, rank, store = json.loads(args)
    torch.set_num_threads(common.threads_of(workers))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=workers)
    torch.manual_seed(0)
    chunks = 2 if name in ("interleaved", "zero-bubble") else 1
    count, device = workers * chunks, torch.device("cpu")
    numbers = [rank + k * workers for k in range(chunks)]
    parts = [stage_module(c, number, count) for number in numbers]
    stages = [PipelineStage(part, number, count, device) for part, number in zip(parts, numbers)]
    loss_fn = lambda logits, targets: F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    schedule = getattr(schedules, SCHEDULES[name])(stages if chunks > 1 else stages[0], c["batch"], loss_fn=loss_fn)
    parameters = [p for part in parts for p in part.parameters()]
    optimizer = common.optimizer_of(parameters)
    torch.manual_seed(1)
    seconds, losses = [], []
    for _ in range(common.WARM + steps):
        ids, targets = torch.randint(0, c["vocab"], (c["batch"], c["seq"])), torch.randint(0, c["vocab"], (c["batch"], c["seq"]))
        start_time = time.perf_counter()
        losses = []
        schedule.step(*([ids] if rank == 0 else []), **(dict(target=targets, losses=losses) if rank == workers - 1 else {}))
        square = sum((p.grad.square().sum() for p in parameters), torch.zeros(()))
        dist.all_reduce(square)
        torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, square.sqrt())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dist.barrier()
        seconds.append(time.perf_counter() - start_time)
    loss = torch.stack(losses).mean().item() if losses else None
    print(json.dumps(dict(seconds=seconds[common.WARM:], peak_bytes=common.peak_bytes("self"), loss=loss)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", nargs="?")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--schedule", action="append", choices=SCHEDULES)
    parser.add_argument("--workers", action="append", type=int)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.worker:
        return peer_worker(options.worker)
    if not options.tool:
        parser.error("the path of the program optimus is missing")
    common.CASES["gpt2-14m"] = CASE
    rows = []
    print(f"{'workers':>7} {'schedule':12} {common.FIGURES}")
    with tempfile.TemporaryDirectory() as folder:
        common.write_tokens(CASE, f"{folder}/{CASE['vocab']}")
        for workers in options.workers or [2, 4]:
            for name in options.schedule or SCHEDULES:
                args = ["--pp", "{n}", "--schedule", name, "--untied", "--microbatch", "1"] + (["--chunks", "2"] if name == "interleaved" else [])
                common.STRATEGIES[name] = (args, SCHEDULES[name])
                our_results, peer_results = [], []
                for _ in range(options.rounds):
                    our_results.append(common.measure_with_load(common.run_ours, options.tool, CASE, name, workers, options.steps, folder))
                    peer_results.append(common.measure_with_load(common.run_peer, CASE, name, workers, options.steps, folder, pathlib.Path(__file__)))
                row = common.row_of("gpt2-14m", name, workers, our_results, peer_results)
                rows.append(row)
                print(f"{workers:7} {name:12} {common.format_figures(row)}", flush=True)
                if options.json:
                    pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
