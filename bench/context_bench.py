#!/usr/bin/env python3
"""Long sequences on two CPU workers: context parallelism (ring attention) compared with PyTorch.

usage: context_bench.py PATH_OF_OPTIMUS [--length 16384]… [--workers 2] [--rounds 2] [--steps 2] [--json FILE]

Run with a Python that has torch. Ours is `optimus train --devices N --cp N`. PyTorch's own context parallelism is tried first and its
error is printed: on CPUs it does not support attention (2.13). The peer is therefore the whole sequence in one process with as many
threads as ours has workers: the same model and work on the same cores, without a ring. The model is one narrow GPT-2 layer, so that
attention dominates.
parallel_bench.py explains how speeds, spread, memory and "others" are measured.
"""
import argparse
import json
import pathlib
import tempfile
import time

import parallel_bench as common


def case_of(length):
    return dict(layers=1, hidden=128, heads=2, vocab=512, seq=length, batch=1)


def peer_worker(args):
    import torch

    c, way, _, steps, rank, store = json.loads(args)
    if way == "probe":
        return print(json.dumps(dict(seconds=[], peak_bytes=0, loss=0, error=error_of_context_parallel(rank, store))), flush=True)
    torch.set_num_threads(c["threads"])
    torch.manual_seed(0)
    model = common.build(c, 1)
    parameters = list(model.parameters())
    optimizer = common.optimizer_of(parameters)
    seconds = []
    for _ in range(common.WARM + steps):
        ids, targets = torch.randint(0, c["vocab"], (1, c["seq"])), torch.randint(0, c["vocab"], (1, c["seq"]))
        start_time = time.perf_counter()
        loss = model(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start_time)
    print(json.dumps(dict(seconds=seconds[common.WARM:], peak_bytes=common.peak_bytes("self"), loss=loss.item())), flush=True)


def error_of_context_parallel(rank, store):
    """Returns the error of PyTorch's context parallelism for attention on CPUs; empty if it works."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    q, k, v = (torch.randn(1, 2, 256, 64) for _ in range(3))
    try:
        with context_parallel(init_device_mesh("cpu", (2,)), buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return ""
    except Exception as error:  # any error is what a user would see
        return str(error).split("\n")[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", nargs="?")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--length", action="append", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.worker:
        return peer_worker(options.worker)
    if not options.tool:
        parser.error("the path of the program optimus is missing")
    program, rows = pathlib.Path(__file__), []
    common.STRATEGIES["cp"] = (["--cp", "{n}"], "one process")
    common.STRATEGIES["probe"] = ([], "context_parallel")
    with tempfile.TemporaryDirectory() as folder:
        error = common.run_peer(case_of(256), "probe", 2, 0, folder, program)["error"]
        print("context_parallel of torch on CPUs: " + (error or "works; this benchmark does not use it yet"))
        print(f"{'tokens':>7} {common.FIGURES}")
        for length in options.length or [16384, 32768, 65536]:
            name = f"{length} tokens"
            c = common.CASES[name] = dict(case_of(length), threads=options.workers)
            common.write_tokens(c, f"{folder}/{c['vocab']}")
            our_results, peer_results = [], []
            for _ in range(options.rounds):
                our_results.append(common.measure_with_load(common.run_ours, options.tool, c, "cp", options.workers, options.steps, folder))
                peer_results.append(common.measure_with_load(common.run_peer, c, "cp", 1, options.steps, folder, program))
            rows.append(common.row_of(name, "cp", options.workers, our_results, peer_results))
            print(f"{length:7} {common.format_figures(rows[-1])}", flush=True)
            if options.json:
                pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
