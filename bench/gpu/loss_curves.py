#!/usr/bin/env python3
"""Loss curves on real text, ours compared with PyTorch in bf16, from the same weights on the same samples in the same order.

  python3 bench/gpu/loss_curves.py OPTIMUS TOKENS --out FOLDER [--case gpt2-124m,llama-1b-2k] [--seeds 1,2,3] [--steps 300]

TOKENS is the prefix of a token file in Megatron's format (uint16). A seed determines the order of the samples (src/data/permutation.h),
which PyTorch also uses. Weights come from PyTorch: bf16, written as a Hugging Face folder from which both begin. Each side: bf16 weights
and activations, fp32 masters and moments, AdamW, clipping, two micro-batches, a constant learning rate after a warm-up. PyTorch
accumulates gradients in bf16 and runs uncompiled.

A row has the mean loss of the last 50 steps of each side and seed. Ours is within PyTorch's spread when, for each seed, the two sides
differ by less than PyTorch's seeds differ from each other. """
import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import bench_common as bc  # noqa: E402
import peer_torch  # noqa: E402
import plans  # noqa: E402

SIZES = {"gpt2-124m": dict(micro=8, accum=2, lr=6e-4), "llama-1b-2k": dict(micro=1, accum=2, lr=2e-4)}
WARMUP, TAIL = 30, 50
MASK = (1 << 64) - 1


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def with_number(key, number):
    return mix(key ^ mix((number + 0x9E3779B97F4A7C15) & MASK))


def with_name(key, name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return mix(key ^ mix(value))


def order_of(seed, count):
    """Returns the windows of the first epoch, in the order of Optimus-Megatron: a Feistel network of six rounds."""
    key = with_number(with_number(with_name(mix(seed), "epoch"), 0), 0)
    bits = (count - 1).bit_length()
    half = 1 if bits < 2 else (bits + 1) // 2
    low = (1 << half) - 1

    def at(value):
        while True:
            left, right = value >> half, value & low
            for step in range(6):
                left ^= with_number(key, step << 48 | right) & low
                left, right = right, left
            value = left << half | right
            if value < count:
                return value
    return at


def write_weights(model, c, folder):
    from safetensors.torch import save_file
    os.makedirs(folder, exist_ok=True)
    state, tensors = model.state_dict(), {}
    d, heads, kv, dim = c["d"], c["H"], c["KV"], c["d"] // c["H"]
    if c["arch"] == "gpt2":
        tensors = {"transformer.wte.weight": state["wte.weight"], "transformer.wpe.weight": state["wpe.weight"],
                   "transformer.ln_f.weight": state["norm.weight"], "transformer.ln_f.bias": state["norm.bias"]}
        names = {"ln1": "ln_1", "ln2": "ln_2", "qkv": "attn.c_attn", "proj": "attn.c_proj", "fc1": "mlp.c_fc", "fc2": "mlp.c_proj"}
        for i in range(c["L"]):
            for ours, theirs in names.items():
                weight = state["blocks.%d.%s.weight" % (i, ours)]
                tensors["transformer.h.%d.%s.weight" % (i, theirs)] = weight.t() if weight.dim() == 2 else weight
                tensors["transformer.h.%d.%s.bias" % (i, theirs)] = state["blocks.%d.%s.bias" % (i, ours)]
        config = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_embd=d, n_layer=c["L"], n_head=heads, n_inner=c["ffn"],
                      n_positions=c["T"], n_ctx=c["T"], vocab_size=c["V"], activation_function="gelu_new", layer_norm_epsilon=1e-5,
                      tie_word_embeddings=True, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    else:
        tensors = {"model.embed_tokens.weight": state["wte.weight"], "model.norm.weight": state["norm.weight"]}
        for i in range(c["L"]):
            at, to = "blocks.%d." % i, "model.layers.%d." % i
            q, k, v = state[at + "wqkv.weight"].split([heads * dim, kv * dim, kv * dim])
            gate, up = state[at + "w13.weight"].chunk(2)
            tensors.update({to + "self_attn.q_proj.weight": q, to + "self_attn.k_proj.weight": k, to + "self_attn.v_proj.weight": v,
                            to + "self_attn.o_proj.weight": state[at + "wo.weight"], to + "mlp.gate_proj.weight": gate, to + "mlp.up_proj.weight": up,
                            to + "mlp.down_proj.weight": state[at + "w2.weight"], to + "input_layernorm.weight": state[at + "n1.weight"],
                            to + "post_attention_layernorm.weight": state[at + "n2.weight"]})
        config = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=d, num_hidden_layers=c["L"], num_attention_heads=heads,
                      num_key_value_heads=kv, head_dim=dim, intermediate_size=c["ffn"], max_position_embeddings=c["T"], vocab_size=c["V"],
                      rms_norm_eps=1e-5, rope_theta=500000.0, hidden_act="silu", tie_word_embeddings=c["tied"], attention_bias=False, mlp_bias=False,
                      bos_token_id=0, eos_token_id=0)
    save_file({k: v.contiguous().cpu().clone() for k, v in tensors.items()}, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    json.dump(dict(config, torch_dtype="bfloat16"), open(os.path.join(folder, "config.json"), "w"))


def batch_of(tokens, at, c, first, count):
    import torch
    rows = np.stack([tokens[at(n) * c["T"]:at(n) * c["T"] + c["T"] + 1].astype(np.int64) for n in range(first, first + count)])
    rows = torch.from_numpy(rows).cuda()
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def fresh_model(c):
    import torch
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = peer_torch.build(c)
    return model.to(torch.bfloat16).train()


def theirs(c, size, tokens, at, steps):
    import torch
    model = fresh_model(c)
    opt = bc.FlatAdamW(model, "master", "fused", lr=size["lr"])
    losses = []
    for step in range(1, steps + 1):
        for group in opt.opt.param_groups:
            group["lr"] = size["lr"] * min(1.0, step / WARMUP)
        sum_of_step = 0
        for m in range(size["accum"]):
            x, y = batch_of(tokens, at, c, ((step - 1) * size["accum"] + m) * size["micro"], size["micro"])
            loss = model(x, y)
            (loss / size["accum"]).backward()
            sum_of_step = sum_of_step + loss.detach() / size["accum"]
        opt.step()
        losses.append(sum_of_step)
    losses = [float(v) for v in losses]
    del model, opt
    bc.free_all()
    return losses


def ours(tool, weights, plan, size, data, seed, steps, run):
    args = [tool, "train", "--model", weights, "--data", data, "--tokenizer", "bytes", "--plan", plan, "--steps", steps, "--lr", size["lr"],
             "--warmup", WARMUP, "--lr-schedule", "constant", "--validation", 0, "--seed", seed, "--sample", 0, "--run", run, "--device", "cuda", "--devices", 1]
    with open(run + ".log", "w") as log:
        process = subprocess.Popen([str(w) for w in args], stdout=log, stderr=log)
        path, losses = os.path.join(run, "metrics.jsonl"), []
        while len(losses) < steps and process.poll() is None:  # does not wait for the files that are written at the end of a run
            time.sleep(0.2)
            if os.path.exists(path):
                losses = [json.loads(line)["loss"] for line in open(path) if line.endswith("\n")]
        process.kill()
        process.wait()
    if len(losses) < steps:
        raise SystemExit("%s ended after only %d steps: %s" % (" ".join(map(str, args)), len(losses), open(run + ".log").read()[-600:]))
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tool")
    parser.add_argument("tokens")
    parser.add_argument("--out", required=True)
    parser.add_argument("--case", default="gpt2-124m,llama-1b-2k")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--our-seeds", help="a subset of the seeds for ours; default: all")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    tokens = np.memmap(options.tokens + ".bin", dtype=np.uint16, mode="r")
    result = {}
    for case in options.case.split(","):
        c, size = bc.CASES[case], SIZES[case]
        weights = os.path.join(options.out, case)
        write_weights(fresh_model(c), c, weights)
        plan = plans.write_plan(os.path.join(options.out, case + ".plan.json"), case, micro=size["micro"], accum=size["accum"])
        rows = {}
        for seed in [int(s) for s in options.seeds.split(",")]:
            at = order_of(seed, (len(tokens) - 1 + c["T"] - 1) // c["T"])
            run = os.path.join(options.out, "run-%s-%d" % (case, seed))
            peer = theirs(c, size, tokens, at, options.steps)
            rows[seed] = dict(theirs=peer)
            if options.our_seeds and str(seed) not in options.our_seeds.split(","):
                print("%-12s seed %d: only PyTorch, last %d steps %.4f" % (case, seed, TAIL, np.mean(peer[-TAIL:])), flush=True)
                continue
            our_results = rows[seed]["ours"] = ours(options.tool, weights, plan, size, options.tokens, seed, options.steps, run)
            a, b = np.mean(our_results[-TAIL:]), np.mean(peer[-TAIL:])
            print("%-12s seed %d: first %.4f / %.4f, last %d steps %.4f / %.4f, difference %+.4f; largest difference in a step %.4f" % (
                case, seed, our_results[0], peer[0], TAIL, a, b, a - b, np.abs(np.array(our_results) - np.array(peer)).max()), flush=True)
        peer_results = [np.mean(r["theirs"][-TAIL:]) for r in rows.values()]
        spread = max(peer_results) - min(peer_results)
        worst = max(abs(np.mean(r["ours"][-TAIL:]) - np.mean(r["theirs"][-TAIL:])) for r in rows.values() if "ours" in r)
        print("%-12s PyTorch's seeds differ by %.4f, the two sides by at most %.4f: %s" % (
            case, spread, worst, "within" if worst <= spread else "NOT within"), flush=True)
        result[case] = dict(rows=rows, spread=spread, worst=worst)
        json.dump(result, open(os.path.join(options.out, "loss_curves.json"), "w"))


if __name__ == "__main__":
    main()
