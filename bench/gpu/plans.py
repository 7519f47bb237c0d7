"""The plan of each case on one GPU, as `optimus train --plan` accepts it.

Some of the first layers recompute the outputs of their norms and activation functions ("selective") if that is needed to stay within the
peer's memory: gradients are accumulated in fp32, 2 bytes per parameter more than the peer's. The first layers, because their backward
comes last, when the activations of the other layers have been released. """
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_common as bc  # noqa: E402

SELECTIVE_LAYERS = {"gpt2-1.5b": 12, "llama-8b8l-4k": 4}
MODELS = {"gpt2-124m": "gpt2", "gpt2-1.5b": "gpt2-xl", "llama-1b-2k": "llama3-8b", "llama-1b-4k": "llama3-8b", "llama-8b8l-4k": "llama3-8b",
          "tiny-gpt2": "gpt2", "tiny-llama": "llama3-8b"}


def plan_of(case, selective=None, micro=None, accum=None, fp8=None):
    """fp8: None, or the blocks whose GEMMs are in fp8: "all" layers, "inner" ones (all but the first and the last), or "3..9"; with the
    suffix "-current", scales are computed from the current tensor."""
    c = bc.CASES[case]
    selective = SELECTIVE_LAYERS.get(case, 0) if selective is None else selective
    micro, accum = micro or c["micro"][0], accum or c["accum"]
    last = c["L"] + 1
    runs = [{"blocks": "0..%d" % last}]
    if selective:
        runs = [{"blocks": "0"}, {"blocks": "1..%d" % selective if selective > 1 else "1", "recompute": "selective"},
                {"blocks": "%d..%d" % (selective + 1, last) if selective + 1 < last else str(last)}]
    named, _, scales = (fp8 or "").partition("-")
    narrow = {"": None, "all": "1..%d" % c["L"], "inner": "2..%d" % (c["L"] - 1)}.get(named, named)
    extra = {"fp8": {"blocks": narrow, "scales": scales or "window"}} if narrow else {}
    return {**extra, "format": "optimus-plan", "version": 1, "model": case, "blocks": c["L"] + 2, "batch": micro * accum, "sequence_length": c["T"],
            "schedule": "1f1b", "precision": "fp8" if narrow else "bf16", "accumulators": "fp32",
            "pipelines": [{"microbatches": [{"count": accum, "sequences": micro}], "stages": [{"devices": "0", "layers": runs}]}]}


def write_plan(path, case, **options):
    with open(path, "w") as f:
        json.dump(plan_of(case, **options), f, indent=1)
    return path


def model_words(case):
    """Returns the model's dimensions, by the names of the flags of `optimus train`."""
    c = bc.CASES[case]
    return {"model": MODELS[case], "layers": c["L"], "hidden": c["d"], "heads": c["H"], "kv-heads": c["KV"], "head-dim": c["d"] // c["H"],
            "ffn": c["ffn"], "vocab": c["V"], "max-positions": c["T"]}
