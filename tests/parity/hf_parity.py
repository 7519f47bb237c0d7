"""Models read from and written for transformers: folders, logits, losses, generated tokens, tokenizers.

usage: hf_parity.py PATH_OF_HF_TOOL

Small random models of every family that transformers saves, whole and in shards, are opened by our commands; models that our commands
train and export are opened by transformers. Either way both compute the same logits (norm-wise within 1e-5, as fp32 sums in another order
allow; engine_parity.py has the fp64 comparison), the same loss over the same windows, and the same 64 greedy tokens. """
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy
import torch
import transformers

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tensor_file
from small_models import MODELS, NO_TOKENS, randomize

transformers.utils.logging.disable_progress_bar()
TOOL = sys.argv[1]
OPTIMUS = str(pathlib.Path(TOOL).resolve().parents[1] / "optimus")
SEED = int(os.environ.get("OPTIMUS_SEED") or random.randrange(10**9)) % 2**31
POSITIONS = 96  # room for a prompt and 64 tokens
LOGITS, LOSS, NEW_TOKENS = 1e-5, 1e-5, 64
problems = []


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def run_json(*words):
    return json.loads(run(OPTIMUS, *words, "--json"))


def config_of(label, **more):
    architecture, settings = MODELS[label]
    kind = getattr(transformers, architecture).config_class
    positions = "n_positions" if "n_positions" in settings else "max_position_embeddings"
    tokens = {} if "Bert" in architecture else NO_TOKENS
    return kind(**{**settings, **tokens, positions: POSITIONS, **more})


def model_class(label):
    return getattr(transformers, MODELS[label][0])


def our_logits(folder, ids, scratch):
    tensor_file.save({"ids": ids.numpy()}, scratch / "ids.safetensors")
    run(TOOL, folder, scratch / "ids.safetensors", scratch / "logits.safetensors", "fp32")
    return torch.from_numpy(tensor_file.load(scratch / "logits.safetensors")["logits"].copy())


def check_logits(label, model, folder, scratch):
    ids = torch.randint(0, model.config.vocab_size, (3, 20))
    with torch.no_grad():
        theirs = model(input_ids=ids).logits.double()
    ours = our_logits(folder, ids, scratch)
    error = float((ours - theirs).norm() / theirs.norm())
    if not error <= LOGITS:
        problems.append(f"{label}: logits differ by {error:.1e}")
    return error


def check_tokens(label, model, folder):
    """If transformers' two best logits are closer than our difference from them, either may win: the comparison ends there."""
    prompt = torch.randint(0, model.config.vocab_size, (1, 7))
    with torch.no_grad():
        made = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, output_logits=True, return_dict_in_generate=True, pad_token_id=0)
    theirs = made.sequences[0, prompt.shape[1] :].tolist()
    ours = run_json("generate", "--model", folder, "--prompt-ids", ",".join(map(str, prompt[0].tolist())), "--tokens", NEW_TOKENS, "--greedy")["ids"]
    same = 0
    while same < NEW_TOKENS and theirs[same] == ours[same]:
        same += 1
    if same < NEW_TOKENS:
        best = made.logits[same][0].double().topk(2).values
        if float(best[0] - best[1]) > 2 * LOGITS * float(made.logits[same][0].double().norm()):
            problems.append(f"{label}: token {same} is {ours[same]}, transformers has {theirs[same]}")
    return same


def check_loss(label, model, folder, scratch):
    """Two documents as one stream, windows of 24 inputs; the last, incomplete window is omitted."""
    length = 24
    rows = [random.choices(range(256), k=131), random.choices(range(256), k=90)]
    stream = [token for row in rows for token in (*row, 256)]
    data = scratch / "data.jsonl"
    data.write_text("".join(json.dumps({"text": "".join(chr(c % 128) for c in row)}) + "\n" for row in rows))
    stream = [token if token == 256 else token % 128 for token in stream]
    result = run_json("eval", "--model", folder, "--data", data, "--tokenizer", "bytes", "--seq", length, "--batch", 4)
    count = (len(stream) - 1) // length
    inputs = torch.tensor(stream[: count * length]).view(count, length)
    targets = torch.tensor(stream[1 : count * length + 1]).view(count, length)
    with torch.no_grad():
        expected = float(torch.nn.functional.cross_entropy(model(input_ids=inputs).logits.double().flatten(0, 1), targets.flatten()))
    error = abs(result["loss"] - expected) / expected
    if not (error <= LOSS and result["tokens"] == count * length and abs(result["perplexity"] / numpy.exp(result["loss"]) - 1) < 1e-12):
        problems.append(f"{label}: loss {result}, transformers has {expected} over {count * length} tokens")
    return error


def check_incoming(label, scratch):
    """Checks models that transformers saves."""
    torch.manual_seed(SEED)
    is_bert = "Bert" in MODELS[label][0]
    model = model_class(label)(config_of(label, vocab_size=257)).float().eval()
    randomize(model, SEED)
    whole, sharded = scratch / "whole", scratch / "sharded"
    model.save_pretrained(whole)
    model.save_pretrained(sharded, max_shard_size="40KB")
    assert (sharded / "model.safetensors.index.json").exists(), "the model is expected to be saved in shards"
    errors = [check_logits(f"{label} from transformers", model, folder, scratch) for folder in (whole, sharded)]
    summary = f"{label:18} from transformers: logits {max(errors):.1e}"
    if not is_bert:
        summary += f", loss {check_loss(label, model, sharded, scratch):.1e}, {check_tokens(f'{label} from transformers', model, whole)} greedy tokens"
    check_conversion(label, model, sharded, scratch)
    print(summary, flush=True)


def check_conversion(label, model, folder, scratch):
    """Rounded to bf16 by our program and by transformers: the same bits."""
    done = run_json("convert", folder, scratch / "bf16", "--dtype", "bf16", "--shard-size", "30kB")
    if done["logits"]["equal"] is not True:
        problems.append(f"{label}: convert printed {done}")
    theirs, ours = model.bfloat16().state_dict(), model_class(label).from_pretrained(scratch / "bf16").state_dict()
    model.float()
    wrong = [name for name in theirs if theirs[name].dtype != ours[name].dtype or not torch.equal(theirs[name], ours[name])]
    if wrong or theirs.keys() != ours.keys():
        problems.append(f"{label}: bf16 differs in {wrong[:3]}")


def bert_tokenizer(folder, text):
    import tokenizers

    made = tokenizers.BertWordPieceTokenizer()
    made.train_from_iterator(text.splitlines(), vocab_size=257, min_frequency=1, show_progress=False)
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json", made.get_vocab_size()


def check_outgoing(label, scratch):
    """Checks models that our commands train and export."""
    torch.manual_seed(SEED)
    is_bert = "Bert" in MODELS[label][0]
    text = "".join(f"line {i} speaks of {i * 7 % 31} things, äöü €\n" for i in range(400))
    (scratch / "text.txt").write_text(text)
    tokenizer, vocabulary = bert_tokenizer(scratch, text) if is_bert else ("bytes", 257)
    start = scratch / "start"
    model = model_class(label)(config_of(label, vocab_size=vocabulary)).float()
    randomize(model, SEED + 1, deviation=0.1)
    model.save_pretrained(start)
    words = ["--data", scratch / "text.txt", "--tokenizer", tokenizer, "--seq", 32, "--batch", 6, "--steps", 12, "--lr", "3e-3", "--warmup", 0, "--sample", 40]
    result = run_json("train", "--model", start, *words, "--run", scratch / "run", "--export", "hf")
    export = scratch / "run" / "export"
    trained = model_class(label).from_pretrained(export).eval()
    moved = max(float((a - b).abs().max()) for a, b in zip(model.parameters(), trained.parameters()))
    if not moved > 1e-3 or trained.dtype != torch.float32:
        problems.append(f"{label}: training changed no weight by more than {moved:.1e}, {trained.dtype}")
    summary = f"{label:18} to transformers: logits {check_logits(f'{label} exported', trained, export, scratch):.1e}"
    if not is_bert:
        summary += f", {check_tokens(f'{label} exported', trained, export)} greedy tokens"
        # The folder must generate what the training generated from memory, so it has the trained weights.
        again = run_json("generate", "--model", export, "--prompt", "", "--tokens", 40, "--temperature", 0.8, "--seed", 1)
        shown = "".join(c for c in again["text"] if c in "\n\t" or not (ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0))
        if shown != result["sample"]:
            problems.append(f"{label}: the folder generates {shown!r}, the training generated {result['sample']!r}")
        check_byte_tokenizer(label, export)
    else:
        theirs = transformers.AutoTokenizer.from_pretrained(export)(text[:200], add_special_tokens=False)["input_ids"]
        import tokenizers

        if theirs != tokenizers.Tokenizer.from_file(str(tokenizer)).encode(text[:200], add_special_tokens=False).ids:
            problems.append(f"{label}: the exported tokenizer returns other ids")
    print(summary, flush=True)


def check_byte_tokenizer(label, folder):
    """For Qwen 2, AutoTokenizer always uses its own class, which composes characters (NFC), whatever the folder specifies. Below U+0300 no
    characters compose."""
    kinds = [0x80, 0x300] if label == "qwen2" else [0x80, 0x300, 0x800, 0xD800, 0x110000]
    points = [random.randrange(random.choice(kinds)) for _ in range(300)]
    texts = ["".join(chr(p) for p in points if not 0xD800 <= p < 0xE000) + " hello  hello\n\n\thello's <|end of text|> "]
    tokenizers = [transformers.AutoTokenizer.from_pretrained(folder)]
    if label == "qwen2":
        tokenizers.append(transformers.PreTrainedTokenizerFast.from_pretrained(folder))
        texts.append("e\u0301 \u1100\u1161 \u212b \U0001f600")
    for tokenizer, text in zip(tokenizers, texts):
        ids = tokenizer(text)["input_ids"]
        if ids != list(text.encode()) or tokenizer.decode(ids) != text or tokenizer.eos_token_id != 256 or len(tokenizer) != 257:
            problems.append(f"{label}: {type(tokenizer).__name__} does not map the bytes of {text!r} to their ids")


def main():
    random.seed(SEED)
    began, labels = time.time(), [label for label in MODELS if label not in ("llama-rope-linear",)]
    labels = os.environ.get("OPTIMUS_ONLY", "").split() or labels
    for label in labels:
        for check in (check_incoming, check_outgoing):
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    check(label, pathlib.Path(scratch))
                except AssertionError as error:
                    problems.append(f"{label}: {error}")
    for problem in problems:
        print(f"FAILED {problem}", file=sys.stderr)
    print(f"{len(labels)} models in both directions, {len(problems)} problems, {time.time() - began:.0f} s, seed {SEED}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
