"""Our models against transformers' own: names, shapes, counts and initialisation of all parameters.

usage: model_parity.py PATH_OF_MODEL_TOOL

Every preset is built on torch's meta device from the config.json that we write. Small random models of every family are built with
real values, so that their initial values can be compared too. Configs that transformers saves are read back.
"""

import json
import os
import random
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers
from transformers import AutoConfig

tool = sys.argv[1]
num_random = 210 if os.environ.get("OPTIMUS_LONG") == "1" else 42
first_seed = random.randrange(10**9)


def run_tool(*arguments):
    answer = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True)
    if answer.returncode != 0:
        raise SystemExit(f"model_tool {' '.join(map(str, arguments))}: {answer.stderr.strip()}")
    return json.loads(answer.stdout)


def open_config(config, folder):
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    return AutoConfig.from_pretrained(folder)


def build(config, device):
    with torch.device(device):
        return getattr(transformers, config.architectures[0])(config)


def piece_of(ours, theirs):
    """Returns the part of their tensor that corresponds to ours, as [out, in]; a mixture's experts are stacked by rows."""
    place = ours["hf"]
    if place["pieces"] > 1:
        rows = ours["shape"][0] // place["pieces"]
        return theirs[:, place["offset"] : place["offset"] + rows].reshape(ours["shape"])
    whole = theirs.t() if place["transposed"] else theirs
    return whole[place["offset"] : place["offset"] + ours["shape"][0]]


def check_places(label, ours, model):
    """Checks that our tensors cover every parameter exactly once, and name nothing else."""
    theirs = dict(model.named_parameters())  # a tied parameter appears once
    rows_covered = {name: [] for name in theirs}
    for tensor in ours["tensors"]:
        place = tensor["hf"]
        assert place["name"] in theirs, f"{label}: transformers has no {place['name']}"
        parameter = theirs[place["name"]]
        assert list(parameter.shape) == place["shape"], f"{label}: {place['name']} is {list(parameter.shape)}, in ours {place['shape']}"
        assert list(piece_of(tensor, parameter).shape) == tensor["shape"], f"{label}: {tensor['name']} does not fit {place['name']}"
        assert tensor["decay"] == (parameter.dim() > 1), f"{label}: weight decay of {tensor['name']} differs"
        rows = tensor["shape"][0] // place["pieces"]
        rows_covered[place["name"]].append((place["offset"], place["offset"] + rows, place["transposed"] or place["pieces"] > 1))
    for name, spans in rows_covered.items():
        rows = theirs[name].shape[1] if spans and spans[0][2] else theirs[name].shape[0]
        at = 0
        for begin, end, _ in sorted(spans):
            assert begin == at, f"{label}: {name} is covered {'twice' if begin < at else 'not at all'} at row {min(begin, at)}"
            at = end
        assert at == rows, f"{label}: rows {at} to {rows} of {name} are not covered"
    count = sum(parameter.numel() for parameter in theirs.values())
    assert count == ours["parameters"], f"{label}: {count} parameters, in ours {ours['parameters']}"


def check_initial_values(label, ours, model):
    theirs = dict(model.named_parameters())
    for tensor in ours["tensors"]:
        values = piece_of(tensor, theirs[tensor["hf"]["name"]]).detach().double()
        if tensor["init"] != "normal":
            expected = 1.0 if tensor["init"] == "ones" else 0.0
            assert (values == expected).all(), f"{label}: {tensor['name']} is not initialised as {tensor['init']}"
            continue
        # The standard deviation of n normal values is off by 1 / sqrt(2 n) on average; six times that does not happen in practice.
        spread = values.square().mean().sqrt().item() / tensor["deviation"] - 1
        assert abs(spread) < 6 / (2 * values.numel()) ** 0.5, f"{label}: {tensor['name']} has a relative deviation of {spread:+.2f} from the standard deviation {tensor['deviation']}"


def check_config_round_trip(label, ours, config, folder):
    """A config that transformers has read and saved again must give the same model."""
    config.save_pretrained(folder)
    again = run_tool("config", os.path.join(folder, "config.json"))
    written = {key: value for key, value in ours["config"].items() if key != "_name_or_path"}  # transformers removes it
    assert again["config"] == written, f"{label}: {again['config']} after transformers saved it, {written} before"


def main():
    with tempfile.TemporaryDirectory() as folder:
        presets = run_tool("list")
        for name in presets:
            ours = run_tool("preset", name)
            config = open_config(ours["config"], folder)
            check_places(name, ours, build(config, "meta"))
            check_config_round_trip(name, ours, config, folder)
        print(f"{len(presets)} presets: names, shapes and counts equal transformers {transformers.__version__}")
        kinds = [("random", seed) for seed in range(first_seed, first_seed + num_random)]
        kinds += [("random-mixture", seed) for seed in range(first_seed, first_seed + num_random // 2)]
        for kind, seed in kinds:
            label = f"{kind} {seed}"
            ours = run_tool(kind, seed)
            config = open_config(ours["config"], folder)
            model = build(config, "cpu")
            check_places(label, ours, model)
            check_initial_values(label, ours, model)
            check_config_round_trip(label, ours, config, folder)
        print(f"{len(kinds)} random models, {num_random // 2} of them mixtures of experts (seeds from {first_seed}): names, shapes, counts and initial values agree")


main()
