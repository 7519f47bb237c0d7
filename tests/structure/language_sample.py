#!/usr/bin/env python3
"""Draws names, comments and user-visible messages at random from src/, cli/ and include/, for a reader who knows the field and not the
project: language_sample.py [SEED] [COUNT]. Each entry has its place, so that the reader can check an explanation afterwards."""
import pathlib
import random
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEED = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(10**6)
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 40
RNG = random.Random(SEED)
# Words of C++ that the patterns of names() match, and the namespaces.
KEYWORDS = set("""
    alignas alignof asm auto bool break case catch char class concept const consteval constexpr constinit const_cast continue decltype default delete
    do double dynamic_cast else enum explicit export extern false final float for friend goto if inline int long mutable namespace new noexcept
    nullptr operator override private protected public reinterpret_cast requires return short signed sizeof static static_assert static_cast
    struct switch template this throw true try typedef typename union unsigned using virtual void volatile while optimus std
    """.split())


def sources():
    done = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "src", "cli", "include"], capture_output=True, text=True, check=True)
    return [path for path in done.stdout.split("\0") if path.endswith((".h", ".cpp", ".cu", ".cuh"))]


def names(text):
    """Declared types, functions and variables, with the line that declares them, as a reader meets them."""
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r'"(?:\\.|[^"\\])*"', '""', line.split("//")[0])
        for pattern in (r"\b(?:struct|class|enum class)\s+(\w+)", r"^\s*(?!(?:throw|return|else|case|delete|using|goto)\b)[\w:<>,*&][\w:<>,*&\s]*?[\s*&](\w+)\s*(?:\(|=|;|\{)"):
            for name in re.findall(pattern, code):
                if len(name) > 2 and name.strip("_") not in KEYWORDS and not name.isdigit():
                    yield number, f"{name}    in: {line.strip()}"


def comments(text):
    block, begin = [], 0
    for number, line in enumerate(text.splitlines() + [""], 1):
        found = re.match(r"\s*// ?(.*)", line)
        if found:
            if not block:
                begin = number
            block.append(found.group(1))
        elif block:
            whole = "\n".join(block)
            if len(whole.split()) >= 5 and "clang-format" not in whole:
                yield begin, whole
            block = []


def messages(text):
    """Literals with at least three words, adjacent pieces joined."""
    code = re.sub(r"//[^\n]*|^#[^\n]*", lambda m: " " * len(m.group()), text, flags=re.MULTILINE)
    for found in re.finditer(r'(?:"(?:\\.|[^"\\\n])*"\s*)+', code):
        whole = "".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', found.group()))
        if len(re.findall(r"[A-Za-z]{2,}", whole)) >= 3 and " " in whole and "<" not in whole:
            yield code.count("\n", 0, found.start()) + 1, whole


def main():
    print(f"seed {SEED}")
    texts = {path: (ROOT / path).read_text(errors="replace") for path in sources()}
    for title, find in (("Names", names), ("Comments", comments), ("Messages", messages)):
        everything = sorted({(path, number, entry) for path, text in texts.items() for number, entry in find(text)})
        print(f"\n## {title}: {COUNT} of {len(everything)}\n")
        for index, (path, number, entry) in enumerate(RNG.sample(everything, COUNT), 1):
            print(f"{index}. [{path}:{number}] {entry}")


main()
