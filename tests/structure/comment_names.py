#!/usr/bin/env python3
"""Checks that the names in comments and documentation exist in the tree: file names, `identifier()` and `Class::member`; in comments of
C++ also identifiers in backticks, which must occur in the code of the file or of the header or source file with its name.

    comment_names.py    prints each name that does not exist; exit code 1 if there is one

A name counts as existing if it is a word of any code or string literal of the tree. Names of other projects are listed in EXTERNAL_*."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = (".h", ".cpp", ".cu", ".cuh", ".inc")

# Namespaces and classes of other projects; their members are not checked.
EXTERNAL_SCOPES = {
    "std", "at", "c10", "c10d", "torch", "gloo", "fmt", "rc", "tl", "toml", "nlohmann", "testing", "CLI", "cudnn_frontend",
}
# {name: reason}
EXTERNAL_NAMES = {
    "String::from_utf8_lossy": "Rust", "from_utf8_lossy": "Rust", "sm_90": "a GPU architecture", "kat_vectors": "a file of Random123",
    "session_log": "a field of TensorBoard's event format", "all_reduces": "plural",
    "col": "an order of cuBLASLt", "row": "an order of cuBLASLt", "resolve": "a function of settings/settings.h",
    "my_box": "a variable of an example", "two_racks": "a variable of an example", "rank_2": "a variable of an example",
}
EXTERNAL_FILES = {
    "megatron/training/arguments.py": "Megatron-LM", "pretrain_gpt.py": "Megatron-LM", "examples/bert/pretrain_bert.py": "DeepSpeed",
    "launch.sh": "written by plan --export", "optimus_torchtitan.py": "written by plan --export", "pretrain.sh": "an example's launch script",
    "tests/fuzz/NAME_fuzz.cpp": "a pattern",
}
# History and records of decisions name what existed then.
SKIPPED = ("CHANGELOG.md", "docs/contribute/decisions/", "tests/structure/comment_names.py")


def tracked(*patterns):
    done = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "-co", "--exclude-standard", "--", *patterns], capture_output=True, text=True, check=True)
    return [path for path in done.stdout.split("\0") if path and (ROOT / path).is_file()]


def split_code(text):
    """(code without comments, [(line, comment)]); adjacent comment lines are joined."""
    pattern = r'//[^\n]*|/\*.*?\*/|(?:u8|u|U|L)?R"([^()\\ ]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\''
    comments = []

    def visit(match):
        found = match.group()
        if not found.startswith(("//", "/*")):
            return found
        line = text.count("\n", 0, match.start()) + 1
        own_line = not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
        words = found.removeprefix("//").strip()
        if own_line and comments and comments[-1][2] == line - 1:
            first, before, _ = comments.pop()
            comments.append((first, before + " " + words, line))
        else:
            comments.append((line, words, line if own_line else -1))
        return " "

    code = re.sub(pattern, visit, text, flags=re.DOTALL)
    return code, [(line, words) for line, words, _ in comments]


def python_comments(text):
    """(code, comments and docstrings)."""
    comments = []

    def visit(match):
        comments.append((text.count("\n", 0, match.start()) + 1, match.group()))
        return " "

    return re.sub(r'^\s*"""(?:.|\n)*?"""|(?<=\s)# [^\n]*', visit, text, flags=re.MULTILINE), comments


def main():
    files = tracked()
    by_name = {path.rsplit("/", 1)[-1] for path in files}
    suffixes = {path[i:] for path in files for i in [0, *(k + 1 for k, c in enumerate(path) if c == "/")]}
    words, words_of, texts = set(), {}, []
    for path in files:  # programs are named after files and folders
        stem, folder = pathlib.PurePath(path).stem, path.split("/")[1] if "/" in path else ""
        words |= {stem, "bench_" + stem.removesuffix("_bench"), "test_" + folder}
    for path in files:
        if path.endswith(CODE):
            code, comments = split_code((ROOT / path).read_text(errors="replace"))
            words_of[path.rsplit(".", 1)[0]] = words_of.get(path.rsplit(".", 1)[0], set()) | set(re.findall(r"\w+", code))
            words |= set(re.findall(r"\w+", code))
            texts.append((path, comments))
        elif path.endswith(".py") or (ROOT / path).read_bytes()[:21].startswith(b"#!/usr/bin/env python"):
            code, comments = python_comments((ROOT / path).read_text(errors="replace"))
            words |= set(re.findall(r"\w+", code))
            texts.append((path, comments))
        elif path.endswith((".sh", ".cmake", ".txt", ".toml")) or path in ("test", "optimus"):
            words |= set(re.findall(r"\w+", (ROOT / path).read_text(errors="replace")))
    for path in files:
        if path.endswith(".md"):
            lines = (ROOT / path).read_text().splitlines()
            texts.append((path, list(enumerate(lines, 1))))
    problems = []
    for path, comments in texts:
        if path.startswith(SKIPPED):
            continue
        for line, comment in comments:
            for name in missing(path, comment, words, words_of, suffixes, by_name):
                problems.append(f"{path}:{line}: {name} does not exist")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def missing(path, comment, words, words_of, suffixes, by_name):
    text = re.sub(r"https?://\S+", " ", comment)
    for found in re.findall(r"(?<![\w$}>*.…-])((?:[\w.-]+/)*[\w-]+\.(?:h|cpp|cu|cuh|py|sh|inc|md))\b(?![\w/*])", text):
        name = re.sub(r"^(?:\.\.?/)+", "", found)
        if name not in suffixes and name not in EXTERNAL_FILES and "src/" + name not in suffixes:
            yield found
    for scope, member in re.findall(r"\b([A-Za-z_]\w*)::~?([A-Za-z_]\w*)", text):
        if scope not in EXTERNAL_SCOPES and f"{scope}::{member}" not in EXTERNAL_NAMES and not {scope, member} <= words:
            if not re.search(r"\b(?:" + "|".join(EXTERNAL_SCOPES) + r")::(?:\w+::)*" + scope + r"::" + member, text):
                yield f"{scope}::{member}"
    for scope, name in re.findall(r"((?:[A-Za-z_]\w*(?:::|\.|->))*)([A-Za-z_]\w*)\(\)", text):
        if name not in words and name not in EXTERNAL_NAMES and scope.split("::")[0] not in EXTERNAL_SCOPES:
            yield f"{name}()"
    if path.endswith(CODE):
        for name in re.findall(r"`([A-Za-z_]\w*)`", text):
            others = set().union(*(words_of.get("src/" + other, set()) for other in re.findall(r"([\w/]+)\.h\b", text)))
            if name not in words_of[path.rsplit(".", 1)[0]] | others and name not in EXTERNAL_NAMES:
                yield f"`{name}`"
        for name in re.findall(r"(?<![\w/.$*<{-])([a-z][a-z0-9]*_[a-z0-9_]+)(?![\w/.*-])", text):
            if name not in words and name not in EXTERNAL_NAMES:
                yield name


if __name__ == "__main__":
    sys.exit(main())
