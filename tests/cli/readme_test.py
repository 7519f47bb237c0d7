#!/usr/bin/env python3
"""Compares the outputs shown in README.md and docs/use/tour.md with what the commands print today. Only commands whose output does
not depend on the machine are run: profile of a model, explain, simulate and plan. Commands without shown output are skipped.

usage: OPTIMUS=build/test/optimus python3 tests/cli/readme_test.py [--write]      --write: updates both pages in place"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "docs/use/tour.md"]
MIN_COMMANDS = 4  # in all pages together; fewer means that the pages are no longer found or parsed
OPTIMUS = os.environ["OPTIMUS"]
PROMPT = "$ ./optimus "
SAME_EVERYWHERE = re.compile(r"(explain|simulate|plan|profile --model) ")


def shown_commands(text):
    """(words, first line of the output, line after it) of each command with output; lines are counted from 0."""
    lines, found, inside = text.splitlines(), [], False
    for number, line in enumerate(lines):
        if line.startswith("```"):
            inside = not inside
        elif inside and line.startswith(PROMPT):
            end = next(at for at in range(number + 1, len(lines)) if lines[at].startswith(("$ ", "```")))
            args = line.removeprefix(PROMPT)
            if end > number + 1 and SAME_EVERYWHERE.match(args):
                found.append((shlex.split(args, comments=True), number + 1, end))
    return found


def output_of(args):
    environment = dict(os.environ, COLUMNS="130")
    lines = subprocess.run([OPTIMUS, *args], cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout.rstrip().splitlines()
    return [line.rstrip() for line in lines]


NUMBER = re.compile(r"\d[\d,]*\.?\d*")


def is_same(one, other):
    """True if both lines have the same words and spacing, and numbers within 1 %: CPUs round differently."""
    numbers = [[float(number.replace(",", "")) for number in NUMBER.findall(line)] for line in (one, other)]
    shapes = [re.sub(r"\s+", " ", NUMBER.sub("#", line)) for line in (one, other)]
    return shapes[0] == shapes[1] and all(abs(a - b) <= 0.01 * max(a, b) for a, b in zip(*numbers))


class ReadmeTest(unittest.TestCase):
    def test_shown_output_is_current(self):
        num_commands = 0
        for page in PAGES:
            text = page.read_text()
            for args, begin, end in shown_commands(text):
                num_commands += 1
                shown, now = text.splitlines()[begin:end], output_of(args)
                if len(shown) != len(now) or not all(map(is_same, shown, now)):
                    self.assertEqual(shown, now, f"{page.name}: optimus {' '.join(args)}: run readme_test.py --write to update the page")
        self.assertGreaterEqual(num_commands, MIN_COMMANDS)


def write():
    for page in PAGES:
        text = page.read_text()
        lines = text.splitlines()
        for args, begin, end in reversed(shown_commands(text)):
            lines[begin:end] = output_of(args)
        page.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write() if sys.argv[1:] == ["--write"] else unittest.main()
