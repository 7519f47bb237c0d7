#!/usr/bin/env python3
"""Tests the installed library from outside the source tree: a program finds it with find_package, trains 20 steps on two workers,
receives an event for each step, switches the plan and stops, and prints nothing to its console. Needs $OPTIMUS_BUILD (a build folder) and
CMake."""
import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["OPTIMUS_BUILD"])
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Consumer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.prefix = cls.folder / "prefix"
        cls.call(["cmake", "--install", BUILD, "--prefix", cls.prefix])
        cls.call(["cmake", "-S", ROOT / "examples/consumer", "-B", cls.folder / "build", f"-DCMAKE_PREFIX_PATH={cls.prefix}"])
        cls.call(["cmake", "--build", cls.folder / "build"])

    @staticmethod
    def call(args, code=0, **options):
        result = subprocess.run(list(map(str, args)), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300, **options)
        if result.returncode != code:
            raise AssertionError(f"{args}: exit code {result.returncode}: {result.stderr[-2000:]}{result.stdout[-2000:]}")
        return result

    def test_headers_are_self_contained(self):
        headers = sorted((self.prefix / "include/optimus").glob("*.h"))
        self.assertLessEqual({"options.h", "train.h", "plan.h", "simulate.h", "run.h"}, {header.name for header in headers})
        for header in headers:
            self.assertNotRegex(header.read_text(), r'#include "(?!optimus/)')
            source = self.folder / "alone.cpp"
            source.write_text(f"#include <optimus/{header.name}>\nint main() {{}}\n")
            self.call(["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", self.prefix / "include", source])

    def test_trains_switches_and_stops_without_console_output(self):
        text, report = self.folder / "text.txt", self.folder / "report.txt"
        text.write_text("".join(f"line {i} of {i * 7 % 31}, and so on\n" for i in range(900)))
        result = self.call([self.folder / "build/consumer", text, self.folder / "run", report], cwd=self.folder)
        self.assertEqual((result.stdout, result.stderr), ("", ""))
        lines = report.read_text().splitlines()
        steps = [int(line.split()[1]) for line in lines if line.startswith("step ")]
        self.assertEqual(steps, list(range(1, 21)))
        switched = next(line for line in lines if line.startswith("switched: "))
        self.assertRegex(switched, r"step \d+")
        self.assertIn("plan pp2", next(line for line in lines if line.startswith("plan ")))
        self.assertIn("2 workers", "\n".join(lines))
        stopped = next(line for line in lines if line.startswith("stopped "))
        self.assertRegex(stopped, r"^stopped 1 after step \d+$")
        self.assertIn("callbacks: 1 steps, 1 switches", lines)
        refused = next(line for line in lines if line.startswith("refused: "))
        self.assertIn("refused: 1", refused)
        self.assertIn("no such file", refused)
        failed = next(line for line in lines if line.startswith("not written: "))
        self.assertIn("not written: 1", failed)
        rows = [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()]
        self.assertEqual(rows[-1]["step"], int(stopped.split()[-1]))
        checkpoints = [path.name for path in (self.folder / "run/checkpoints").iterdir()]
        self.assertIn(f"step-{rows[-1]['step']}", checkpoints)

    def test_train_joins_a_launched_job_as_a_rank(self):
        """Two processes with the variables of a launcher are two ranks of one training, which learns what one process learns."""
        text = self.folder / "ranks.txt"
        text.write_text("".join(f"line {i} of {i * 7 % 31}, and so on\n" for i in range(900)))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = []
        for rank in range(2):
            variables = {"JOB_COMPLETION_INDEX": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            ranks.append(subprocess.Popen([self.folder / "build/rank", text, self.folder / "two"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, text=True, env={**os.environ, **{name: str(value) for name, value in variables.items()}}))
            self.addCleanup(ranks[-1].kill)
        outputs = [rank.communicate(timeout=300) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
        self.assertEqual([output[1] for output in outputs], ["", ""])
        self.assertEqual(outputs[1][0], "", "only rank 0 reports the result")
        self.assertTrue((self.folder / "two/logs/rank-1.log").exists(), "the second process was not a rank of the same run")
        alone = self.call([self.folder / "build/rank", text, self.folder / "one"], env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout
        loss = [float(output.split()[-1]) for output in (outputs[0][0], alone)]
        self.assertRegex(alone, r"^6 steps, loss ")
        self.assertAlmostEqual(loss[0], loss[1], delta=1e-9 * loss[1])  # fp64: sums in another order

    def test_planner_does_not_need_libtorch(self):
        result = self.call([self.folder / "build/planner"])
        predicted, simulated = map(float, re.search(r": ([\d.]+) s predicted, ([\d.]+) s simulated", result.stdout).groups())
        self.assertAlmostEqual(predicted, simulated, delta=1e-3)
        self.assertNotIn("torch", self.call(["ldd", self.folder / "build/planner"]).stdout)

    def test_pkg_config_finds_the_library(self):
        folder = next(self.prefix.rglob("optimus.pc")).parent
        flags = self.call(["pkg-config", "--cflags", "--libs", "optimus"], env={**os.environ, "PKG_CONFIG_PATH": str(folder)}).stdout.split()
        self.call(["g++", ROOT / "examples/consumer/planner.cpp", "-o", self.folder / "by_pkg_config", *flags])
        self.assertIn("predicted", self.call([self.folder / "by_pkg_config"]).stdout)


if __name__ == "__main__":
    unittest.main(verbosity=1)
