#!/usr/bin/env python3
"""Tests the export of plans to other trainers and their import, from the outside. Needs $OPTIMUS (the binary) and only Python's
standard library."""
import json
import os
import subprocess
import unittest

from command_line import CommandLineTest, as_json, run

PLAN = {"format": "optimus-plan", "version": 1, "model": "llama3-8b", "blocks": 34, "batch": 64, "sequence_length": 8192, "schedule": "1f1b",
        "precision": "bf16", "accumulators": "fp32", "pipelines": [{"microbatches": [{"count": 8, "sequences": 8}], "stages": [
            {"devices": "0..15", "layers": [{"blocks": "0..16", "tp": 4, "sequence_parallel": True, "zero": 1, "recompute": "full"}]},
            {"devices": "16..31", "layers": [{"blocks": "17..33", "tp": 4, "sequence_parallel": True, "zero": 1, "recompute": "full"}]}]}]}


class Export(CommandLineTest):
    def plan(self, **changes):
        return self.write("plan.json", json.dumps({**PLAN, **changes}))

    def test_exports_files_for_each_trainer(self):
        plan = self.plan()
        files = {"megatron": {"launch.sh"}, "deepspeed": {"ds_config.json", "config.json", "launch.sh"},
                 "torchtitan": {"torchtitan.toml", "optimus_torchtitan.py", "launch.sh"}, "optimus": set()}
        for trainer, expected in files.items():
            result = as_json("explain", plan, "--export", trainer, "--out", self.folder / trainer)
            names = {path.name for path in (self.folder / trainer).iterdir()}
            self.assertEqual(names, expected | {"plan.json", "optimus-export.json"})
            self.assertEqual(set(result["export"]["files"]), expected | {"plan.json"})
            self.assertEqual(as_json("explain", self.folder / trainer / "plan.json")["hash"], result["hash"])
            if "launch.sh" in expected:
                self.assertTrue(os.access(self.folder / trainer / "launch.sh", os.X_OK))
                subprocess.run(["bash", "-n", self.folder / trainer / "launch.sh"], check=True)
        self.assertIn("note: ", run("explain", plan, "--export", "torchtitan", "--out", self.folder / "torchtitan").stdout)

    def test_special_characters_are_quoted(self):
        out = self.folder / "out"
        run("explain", self.plan(), "--export", "megatron", "--out", out, "--data", "a'b $HOME `id` }c", "--tokenizer", '"x\\')
        fake = self.write("bin/torchrun", '#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
        fake.chmod(0o755)
        args = subprocess.run([out / "launch.sh", "--more"], capture_output=True, text=True, check=True,
                               env={**os.environ, "PATH": f"{fake.parent}:{os.environ['PATH']}"}).stdout.split("\n")
        at = args.index("--data-path")
        self.assertEqual(" ".join(args[at + 1:at + 5]), "a'b $HOME `id` }c")  # a blend consists of several arguments
        self.assertEqual(args[args.index("--tokenizer-model") + 1], '"x\\')
        self.assertIn("--more", args)

    def test_rejects_plans_that_cannot_be_exported(self):
        plan = self.plan()
        self.expect_error("explain", plan, "--export", "megatrn", "--out", self.folder / "o", contains=["megatrn", "did you mean"])
        self.expect_error("explain", plan, "--export", "megatron", contains=["--out"], code=2)
        self.write("full/mine.txt", "x")
        self.expect_error("explain", plan, "--export", "megatron", "--out", self.folder / "full", contains=["mine.txt"])
        self.expect_error("explain", self.plan(precision="fp64", accumulators="fp64"), "--export", "megatron", "--out", self.folder / "o", contains=["fp64"])
        self.expect_error("explain", plan, "--export", "torchtitan", "--vocab", 257, "--out", self.folder / "o", contains=["llama3 8B"])
        self.assertFalse((self.folder / "o").exists())

    def test_export_and_import_round_trip(self):
        plan = self.plan()
        run("explain", plan, "--export", "megatron", "--out", self.folder / "m")
        back = as_json("plan", "--import", self.folder / "m/launch.sh")
        self.assertEqual(back["plan"], as_json("explain", plan)["plan"])
        self.assertEqual(back["import"]["unknown"], [])
        self.assertIn("--tensor-model-parallel-size 4", back["import"]["understood"])
        self.assertIn("--train-iters 1000", back["import"]["ignored"])
        run("explain", plan, "--export", "deepspeed", "--out", self.folder / "d")
        back = as_json("plan", "--import", self.folder / "d/ds_config.json", "--model", "llama3-8b", "--devices", 32)
        self.assertEqual((back["plan"]["batch"], back["import"]["devices"]), (64, 32))

    def test_import_errors_are_one_line(self):
        self.expect_error("plan", "--import", self.folder / "none.sh", contains=["none.sh"])
        self.expect_error("plan", "--import", self.write("a.sh", "echo hello"), contains=["a.sh", "launch script"])
        self.expect_error("plan", "--import", self.write("b.json", '{"train_batch_size": 8}'), contains=["--model"])
        self.expect_error("plan", "--import", self.write("c.json", '{"train_batch_size": 8'), "--model", "gpt2", "--devices", 1, contains=["c.json"])
        self.expect_error("plan", "--import", self.write("d.sh", os.urandom(5000)), contains=["d.sh"])
        self.expect_error("plan", "--import", self.write("e.sh", "--num-layers 2"), "--model", "gpt2", "--devices", 0, contains=["--devices"])
        self.expect_error("plan", "--import", self.folder / "e.sh", "--model", "gpt2", "--devices", 1, "--batch", -5, contains=["--batch"])

    def test_invalid_utf8_is_printed_as_valid_json(self):
        script = self.write("a.sh", b"python pretrain_gpt.py --num-layers 2 --strange '\xff\x01'")
        result = as_json("plan", "--import", script, "--model", "gpt2", "--devices", 1)
        self.assertEqual(result["import"]["unknown"], ["--strange ??"])


if __name__ == "__main__":
    unittest.main()
