"""Shared by the tests of the command line: runs the binary that $OPTIMUS names, and provides a temporary folder per test. Needs only
Python's standard library."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

OPTIMUS = os.environ["OPTIMUS"]


def run(*args, code=0, cwd=None, env=None, **options):
    result = subprocess.run([OPTIMUS, *map(str, args)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120, cwd=cwd, env=env, **options)
    if code is not None and result.returncode != code:
        raise AssertionError(f"optimus {args} exited with {result.returncode}, expected {code}: {result.stderr or result.stdout}")
    return result


def as_json(*args, **options):
    return json.loads(run(*args, "--json", **options).stdout)


class CommandLineTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def expect_error(self, *args, contains=(), code=1, **options):
        result = run(*args, code=code, **options)
        self.assertEqual(result.stdout, "")
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        for text in contains:
            self.assertIn(text, result.stderr)
        return result.stderr
