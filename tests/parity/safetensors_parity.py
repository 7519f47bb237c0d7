"""Our safetensors files against the format's own library, and our Hugging Face folders against those of transformers.

usage: safetensors_parity.py PATH_OF_SAFETENSORS_TOOL

Files that the library writes are copied and converted by our program and read by the library again, bit for bit. Small models of every
family that transformers saves, whole and in shards, are converted to our logical tensors and back, and opened again.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

transformers.utils.logging.disable_progress_bar()
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from small_models import MODELS, random_model

tool = sys.argv[1]
seed = int(os.environ.get("OPTIMUS_SEED") or random.randrange(10**9))
source = random.Random(seed)
torch.manual_seed(seed)
FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
TYPES = [*FLOATS.values(), torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def run_tool(*words):
    answer = subprocess.run([tool, *map(str, words)], capture_output=True, text=True)
    if answer.returncode != 0:
        raise SystemExit(f"safetensors_tool {' '.join(map(str, words))}: {answer.stderr.strip()}")
    return answer.stdout


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))


def random_tensor(dtype):
    shape = [source.randint(0, 5) for _ in range(source.randint(0, 5))]
    count = 1
    for size in shape:
        count *= size
    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool()
    # Random bits, so that NaN, infinities and subnormal numbers occur.
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (count * size,), dtype=torch.uint8).view(dtype).reshape(shape)


def check_copies(folder):
    for case in range(60):
        tensors = {f"t{i}é\"\n.{source.random()}": random_tensor(source.choice(TYPES)) for i in range(source.randint(0, 12))}
        metadata = {"format": "pt", "quote\"": "ü\n"} if case % 2 else None
        save_file(tensors, f"{folder}/in", metadata)
        run_tool("copy", f"{folder}/in", f"{folder}/out")
        with safe_open(f"{folder}/out", "pt") as opened:
            assert opened.metadata() == metadata, f"case {case}: metadata {opened.metadata()}, seed {seed}"
        again = load_file(f"{folder}/out")
        assert again.keys() == tensors.keys(), f"case {case}, seed {seed}"
        for name, tensor in tensors.items():
            assert same_bits(again[name], tensor), f"case {case}: {name} changed, seed {seed}"
    print("60 files of the library copied and read back, bit for bit")


def check_conversions(folder):
    """Converts like torch; through double, with one rounding."""
    every16 = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    inputs = {
        "F16": every16.view(torch.float16),
        "BF16": every16.view(torch.bfloat16),
        "F32": torch.cat([torch.randn(200_000) * 10.0 ** torch.randint(-12, 8, (200_000,)), torch.randint(-(2**31), 2**31, (200_000,)).int().view(torch.float32)]),
    }
    inputs["F64"] = inputs["F32"].double() * (1 + torch.randn(400_000, dtype=torch.float64) * 1e-9)
    for name, values in inputs.items():
        save_file({"x": values}, f"{folder}/in")
        for target, dtype in FLOATS.items():
            through = ["double"] if name == "F64" else []
            run_tool("convert", f"{folder}/in", f"{folder}/out", target, *through)
            got, expected = load_file(f"{folder}/out")["x"], values.to(dtype)
            if name == "F64" and dtype.itemsize == 2:  # torch rounds twice: first to float
                nearer = (got.double() - values).abs() <= (expected.double() - values).abs()
                assert bool((nearer | values.isnan() | got.isinf()).all()), f"{name} to {target}, seed {seed}"
                continue
            is_same = (got == expected) | (got.isnan() & expected.isnan())
            assert bool(is_same.all()), f"{name} to {target}: {int((~is_same).sum())} differ, seed {seed}"
    print("values of F64, F32, BF16 and F16 convert into each other as torch converts them")


def check_models(folder):
    for number, label in enumerate(MODELS):
        model = random_model(label, seed + number).double()
        for shards in ("50GB", "20KB"):
            theirs, ours = f"{folder}/{label}-theirs-{shards}", f"{folder}/{label}-ours-{shards}"
            model.save_pretrained(theirs, max_shard_size=shards)
            os.makedirs(ours)
            warnings = run_tool("export", theirs, ours, "F64", shards)
            assert warnings == "", f"{label}: {warnings}"
            os.link(f"{theirs}/config.json", f"{ours}/config.json")
            assert os.path.exists(f"{ours}/model.safetensors.index.json") == (shards == "20KB"), label
            opened, report = type(model).from_pretrained(ours, dtype=torch.float64, output_loading_info=True)
            assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"], f"{label}: {report}"
            for name, value in model.state_dict().items():
                assert same_bits(opened.state_dict()[name], value), f"{label}: {name} changed, seed {seed}"
    print(f"{len(MODELS)} small models of transformers through our tensors and back, whole and in shards, bit for bit")


print(f"seed {seed}")
with tempfile.TemporaryDirectory() as folder:
    check_copies(folder)
    check_conversions(folder)
    check_models(folder)
