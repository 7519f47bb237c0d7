#!/usr/bin/env python3
"""Checks that files of earlier versions can be opened and resumed by this program: every folder v*/ here was written by make_fixtures.sh
with the program of that version. Needs $OPTIMUS (the binary) and only Python's standard library."""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

OPTIMUS = os.environ["OPTIMUS"]
HERE = pathlib.Path(__file__).resolve().parent
VERSIONS = sorted(path for path in HERE.glob("v*") if path.is_dir())

# Runs are in fp64. The same program on another CPU sums in another order: rounding differences (1e-16 per sum) grow over six steps
# of Adam, but stay well below this bound.
RELATIVE = 1e-9


class Compatibility(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def call(self, *args):
        result = subprocess.run(
            [OPTIMUS, *map(str, args)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120, cwd=self.folder
        )
        self.assertEqual(result.returncode, 0, f"{args}: {result.stderr}")
        return result.stdout

    def each_version(self):
        self.assertTrue(VERSIONS)
        return VERSIONS

    def copy(self, version, run):
        target = self.folder / f"{version.name}-{run}"
        shutil.copytree(version / "runs" / run, target)
        return target

    def assert_close(self, found, expected, what):
        self.assertLessEqual(abs(found - expected), RELATIVE * abs(expected), f"{what}: {found}, but {expected} was recorded")

    def test_plans_are_read_and_simulated_equally(self):
        for version in self.each_version():
            plans = sorted((version / "plans").iterdir())
            self.assertGreaterEqual(len(plans), 6)
            for plan in plans:
                self.call("explain", plan)
                self.assertIn("equal", self.call("plan", "--diff", plan, plan))
            simulated = json.loads(
                self.call("simulate", "--plan", version / "plans/plan-large.json", "--cluster", "h100x512", "--model", "llama3-70b", "--json")
            )
            expected = json.loads((version / "files/simulated.json").read_text())
            for key in ("step_seconds", "tokens_per_second", "memory_bytes"):
                self.assert_close(simulated[key], expected[key], key)

    def test_runs_resume_with_the_same_losses(self):
        for version in self.each_version():
            for run in ("one", "four"):
                folder = self.copy(version, run)
                expected = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
                self.assertEqual(len(expected), 12)
                plans = sorted(path.name for path in (folder / "plans").iterdir())
                self.call("train", "--resume", folder, "--steps", 12, "--data", version / "files/tokens", "--switch-at", "")
                self.assertEqual(sorted(path.name for path in (folder / "plans").iterdir()), plans, "the same plan is no new epoch")
                found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
                self.assertEqual([row["step"] for row in found], list(range(1, 13)))
                for was, now in zip(expected, found):
                    for key in ("loss", "grad_norm", "lr"):
                        self.assert_close(now[key], was[key], f"{run}, step {was['step']}, {key}")

    def test_checkpoints_have_the_same_bits(self):
        for version in self.each_version():
            lines = (version / "files/exported.sha256").read_text().splitlines()
            sums = {pathlib.Path(name).parent.name: value for value, name in (line.split() for line in lines)}
            for run in ("one", "four"):
                checkpoint = version / "runs" / run / "checkpoints/step-6"
                self.call("checkpoint", "verify", version / "runs" / run)
                self.call("convert", checkpoint, self.folder / run)
                found = hashlib.sha256((self.folder / run / "model.safetensors").read_bytes()).hexdigest()
                self.assertEqual(found, sums[f"hf-{run}-6"])

    def test_run_folders_are_read(self):
        for version in self.each_version():
            run = version / "runs/four"
            # Later versions may add keys.
            found, expected = json.loads(self.call("decisions", run, "--json")), json.loads((version / "files/decisions.json").read_text())
            self.assertEqual([{key: new.get(key) for key in old} for new, old in zip(found, expected, strict=True)], expected)
            expected = json.loads((version / "files/status.json").read_text())
            status = json.loads(self.call("status", run, "--json"))
            for key in ("step", "epoch", "plan", "workers", "can_lose"):
                self.assertEqual(status[key], expected[key], key)
            self.call("report", run, "--out", self.folder / "page.html")
            self.assertIn("<svg", (self.folder / "page.html").read_text())
            replayed = json.loads(self.call("replay", version / "runs/adaptive", "--policy", "never,rule", "--json"))
            self.assertTrue(replayed)

    def test_runs_switch_to_old_plans(self):
        for version in self.each_version():
            folder = self.copy(version, "four")
            self.call("train", "--resume", folder, "--steps", 10, "--data", version / "files/tokens", "--switch-at", f"8:{version / 'plans/plan-dp4.json'}")
            decisions = json.loads(self.call("decisions", folder, "--json"))
            self.assertEqual([decision["step"] for decision in decisions if decision["kind"] == "switch"], [3, 8])

    def test_hardware_policies_and_timelines_are_read(self):
        for version in self.each_version():
            files = version / "files"
            small = "--model gpt2 --layers 4 --hidden 16 --heads 2 --vocab 257 --batch 8 --seq 16 --precision fp64".split()
            planned = json.loads(self.call("plan", *small, "--cluster", files / "hardware.json", "--json"))
            expected = json.loads((files / "planned.json").read_text())
            self.assertEqual(planned["plan"], expected["plan"])
            self.assert_close(planned["predicted"]["step_seconds"], expected["predicted"]["step_seconds"], "step_seconds")
            args = "--policy rule,learned --model llama3-8b --cluster h100x32 --batch 128 --seq 4096 --json".split()
            policies = json.loads(
                self.call("simulate", "--failures", files / "timeline.json", "--learned", files / "policy.safetensors", *args)
            )
            for now, was in zip(policies, json.loads((files / "policies.json").read_text()), strict=True):
                self.assertEqual((now["policy"], now["switches"]), (was["policy"], was["switches"]))
                self.assert_close(now["useful_tokens_per_second"], was["useful_tokens_per_second"], now["policy"])

    def test_token_files_are_read(self):
        for version in self.each_version():
            found = json.loads(self.call("data", "inspect", version / "files/tokens", "--json"))
            self.assertEqual((found["documents"], found["dtype"]), (1, "uint16"))


if __name__ == "__main__":
    unittest.main(verbosity=1)
