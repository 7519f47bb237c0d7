#!/usr/bin/env python3
"""What README.md shows of commands that answer the same everywhere (profile of a model, explain, simulate, plan) is what they print today. Commands without shown output, and those of
runs and data, are not tried.

usage: OPTIMUS=build/test/optimus python3 tests/cli/readme_test.py [--write]      --write: puts today's output into README.md"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"
OPTIMUS = os.environ["OPTIMUS"]
PROMPT = "$ ./optimus "
SAME_EVERYWHERE = re.compile(r"(explain|simulate|plan|profile --model) ")


def shown_commands(text):
    """(words, first line of the output, line behind it) of each command with output, in lines of the text."""
    lines, found, inside = text.splitlines(), [], False
    for number, line in enumerate(lines):
        if line.startswith("```"):
            inside = not inside
        elif inside and line.startswith(PROMPT):
            end = next(at for at in range(number + 1, len(lines)) if lines[at].startswith(("$ ", "```")))
            words = line.removeprefix(PROMPT)
            if end > number + 1 and SAME_EVERYWHERE.match(words):
                found.append((shlex.split(words, comments=True), number + 1, end))
    return found


def output_of(words):
    environment = dict(os.environ, COLUMNS="130")
    lines = subprocess.run([OPTIMUS, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout.rstrip().splitlines()
    return [line.rstrip() for line in lines]


NUMBER = re.compile(r"\d[\d,]*\.?\d*")


def is_same(one, other):
    """The same words and spaces between them; numbers within 1 %, because processors round differently."""
    numbers = [[float(number.replace(",", "")) for number in NUMBER.findall(line)] for line in (one, other)]
    shapes = [re.sub(r"\s+", " ", NUMBER.sub("#", line)) for line in (one, other)]
    return shapes[0] == shapes[1] and all(abs(a - b) <= 0.01 * max(a, b) for a, b in zip(*numbers))


class ReadmeTest(unittest.TestCase):
    def test_shown_output_is_todays(self):
        text = README.read_text()
        found = shown_commands(text)
        self.assertGreaterEqual(len(found), 4)
        for words, begin, end in found:
            shown, now = text.splitlines()[begin:end], output_of(words)
            if len(shown) != len(now) or not all(map(is_same, shown, now)):
                self.assertEqual(shown, now, "optimus " + " ".join(words) + ": readme_test.py --write puts it right")


def write():
    lines = README.read_text().splitlines()
    for words, begin, end in reversed(shown_commands(README.read_text())):
        lines[begin:end] = output_of(words)
    README.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write() if sys.argv[1:] == ["--write"] else unittest.main()
