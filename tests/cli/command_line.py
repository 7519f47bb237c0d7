"""What tests of the command line share: calling the binary that $OPTIMUS names, and a folder of one's own. Nothing but Python's standard library."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

OPTIMUS = os.environ["OPTIMUS"]


def run(*words, code=0, cwd=None, env=None, **how):
    done = subprocess.run([OPTIMUS, *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120, cwd=cwd, env=env, **how)
    if code is not None and done.returncode != code:
        raise AssertionError(f"optimus {words} gave {done.returncode}, not {code}: {done.stderr or done.stdout}")
    return done


def as_json(*words, **how):
    return json.loads(run(*words, "--json", **how).stdout)


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

    def refused(self, *words, says=(), code=1, **how):
        done = run(*words, code=code, **how)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        for word in says:
            self.assertIn(word, done.stderr)
        return done.stderr
