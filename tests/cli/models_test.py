#!/usr/bin/env python3
"""Tests training and models from the outside: run folders, export, eval, generate, convert, fine-tuning; their results, messages and
exit codes. Needs $OPTIMUS (the binary) and only Python's standard library."""
import json
import math
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time
import unittest

from command_line import OPTIMUS, CommandLineTest, as_json, run


class Models(CommandLineTest):
    def train_args(self, run_folder, *more):
        text = self.folder / "text.txt"
        if not text.exists():
            text.write_text("".join(f"line {i} of {i * 7 % 31}, and so on\n" for i in range(900)))
        shape = "--model gpt2 --layers 2 --hidden 32 --heads 2 --seq 24 --batch 6 --steps 8 --lr 1e-2 --dropout 0 --sample 10 --devices 1 --threads 1".split()
        return ["train", *shape, "--data", text, "--run", self.folder / run_folder, *more]

    def losses(self, run_folder):
        return [row["loss"] for row in self.metrics(run_folder)]

    def metrics(self, run_folder):
        return [json.loads(line) for line in (self.folder / run_folder / "metrics.jsonl").read_text().splitlines()]

    def test_training_writes_its_run_folder(self):
        result = as_json(*self.train_args("a"))
        self.assertEqual(result["steps"], 8)
        rows = self.metrics("a")
        self.assertEqual([row["step"] for row in rows], list(range(1, 9)))
        self.assertTrue({"loss", "grad_norm", "lr", "tokens", "seconds", "tokens_per_second", "epoch"} <= rows[0].keys())
        self.assertEqual(rows[0]["tokens"], 6 * 24)
        self.assertLess(rows[-1]["loss"], rows[0]["loss"])
        self.assertEqual(rows[-1]["loss"], result["loss"])
        settings = (self.folder / "a" / "settings.toml").read_text()
        self.assertRegex(settings, r"steps = 8 +# flag")
        self.assertRegex(settings, r"microbatch = 6 +# chosen")
        self.assertIn("plan", as_json("explain", self.folder / "a" / "plan.json"))
        self.assertTrue(list((self.folder / "a" / "tensorboard").glob("events.out.tfevents.*")))
        run(*self.train_args("b", "--microbatch", "4", "--recompute", "full", "--precision", "fp32"))
        for a, b in zip(self.losses("a"), self.losses("b")):
            self.assertAlmostEqual(a, b, delta=1e-5 * a)  # another summation order
        run(*self.train_args("c", "--plan", self.folder / "b" / "plan.json"))
        self.assertEqual(self.losses("b"), self.losses("c"))

    def test_trains_on_several_inputs(self):
        for name in ("a", "b"):
            (self.folder / f"{name}.txt").write_text(f"text {name} " * 400)
        run("data", "prepare", self.folder / "a.txt", self.folder / "b.txt", "--out", self.folder / "both", "--tokenizer", "bytes")
        self.assertEqual(as_json("data", "inspect", self.folder / "both")["documents"], 2)
        blend = ["--data", "0.7", self.folder / "a.txt", "0.3", self.folder / "b.txt"]
        args = self.train_args("blend")
        at = args.index("--data")
        run(*args[:at], *blend, *args[at + 2:])
        self.assertEqual(len(self.losses("blend")), 8)

    def test_training_rejects_bad_settings_before_it_starts(self):
        run(*self.train_args("a"))
        self.assertIn("already contains a run", run(*self.train_args("a"), code=1).stderr)
        for args, contains in (
            (["--batch", "0"], "--batch"),
            (["--precision", "fp7"], "fp7"),
            (["--device", "tpu"], "tpu"),
            (["--devices", "9", "--pp", "9"], "--pp 9"),
            (["--plan", self.folder / "none.json"], "none.json"),
            (["--data", self.folder / "none.txt"], "none.txt"),
            (["--seq", "999999"], "999999"),
            (["--microbatch", "7"], "--microbatch"),
        ):
            completed = run(*self.train_args("new", *args), code=None)
            self.assertIn(completed.returncode, (1, 2), args)
            self.assertIn(contains, completed.stderr)
            self.assertEqual(len(completed.stderr.strip().splitlines()), 1, completed.stderr)
            self.assertFalse((self.folder / "new").exists(), args)

    def test_training_stops_on_ctrl_c(self):
        args = [OPTIMUS, *map(str, self.train_args("long", "--steps", "1000000"))]
        process = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        metrics = self.folder / "long" / "metrics.jsonl"
        end = time.time() + 60
        while time.time() < end and not (metrics.exists() and metrics.read_text().count("\n") > 3):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)
        steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def exported(self, name="base", *more):
        """Trains a small GPT-2 with 64 positions for some steps and exports it as a Hugging Face folder."""
        self.result = as_json(*self.train_args(name, "--max-positions", 64, "--steps", 30, "--seq", 32, "--export", "hf", *more))
        return self.folder / name / "export"

    def test_exports_evaluates_and_generates(self):
        export, text = self.exported(), self.folder / "text.txt"
        self.assertEqual(sorted(p.name for p in export.iterdir()), ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
        self.assertEqual(as_json("profile", "--model", export)["model"]["layers"], 2)
        scores = as_json("eval", "--model", export, "--data", text, "--seq", 32)
        tokens = len(text.read_bytes()) + 1  # plus the end-of-document token
        self.assertEqual(scores["tokens"], (tokens - 1) // 32 * 32)
        self.assertAlmostEqual(scores["perplexity"], math.exp(scores["loss"]), delta=1e-9)
        self.assertLess(scores["loss"], 3.5)  # ln 257 = 5.55 before training
        self.assertAlmostEqual(as_json("eval", "--model", export, "--data", text, "--seq", 32, "--batch", 1)["loss"], scores["loss"], delta=1e-5)
        run("data", "prepare", text, "--out", self.folder / "tok")
        self.assertEqual(as_json("eval", "--model", export, "--data", self.folder / "tok", "--seq", 32), scores)
        self.assertIn("perplexity", run("eval", "--model", export, "--data", text).stdout)
        for precision, part in ("fp64", 1e-6), ("bf16", 0.02), ("fp16", 0.005):  # bf16 has 8 bits, fp16 11
            loss = as_json("eval", "--model", export, "--data", text, "--seq", 32, "--precision", precision)["loss"]
            self.assertAlmostEqual(loss, scores["loss"], delta=part * loss, msg=precision)

        args = ["generate", "--model", export, "--prompt", "line 1", "--tokens", 40]
        greedy = as_json(*args, "--greedy")
        self.assertEqual((len(greedy["ids"]), greedy["prompt_ids"]), (40, list(b"line 1")))
        self.assertEqual(greedy["text"], bytes(i for i in greedy["ids"] if i < 256).decode(errors="replace"))
        by_ids = as_json("generate", "--model", export, "--prompt-ids", ",".join(map(str, b"line 1")), "--tokens", 40, "--greedy")
        self.assertEqual(by_ids, greedy)
        self.assertEqual(run(*args, "--greedy").stdout, greedy["text"] + "\n")
        chosen = [as_json(*args, "--seed", seed, "--top-p", 0.9)["ids"] for seed in (3, 3, 4)]
        self.assertEqual(chosen[0], chosen[1])
        self.assertNotEqual(chosen[0], chosen[2])
        # The exported folder generates what the training generated from memory.
        self.assertEqual(as_json("generate", "--model", export, "--prompt", "", "--tokens", 10)["text"], self.result["sample"])
        config = json.loads((export / "generation_config.json").read_text())
        config["eos_token_id"] = [greedy["ids"][4], 256]
        (export / "generation_config.json").write_text(json.dumps(config))
        stopped = as_json(*args, "--greedy", "--stop")["ids"]
        self.assertEqual(stopped, greedy["ids"][: greedy["ids"].index(greedy["ids"][4]) + 1])
        self.assertEqual(as_json(*args, "--greedy")["ids"], greedy["ids"])

    def test_runs_and_checkpoints_serve_as_models(self):
        export, text, base = self.exported(), self.folder / "text.txt", self.folder / "base"
        step = base / "checkpoints" / "step-30"
        scores = [as_json("eval", "--model", model, "--data", text, "--seq", 32) for model in (export, base, step)]
        self.assertEqual(scores[0], scores[1])
        self.assertEqual(scores[0], scores[2])
        args = ["--prompt", "line", "--tokens", 12, "--greedy"]
        self.assertEqual(as_json("generate", "--model", base, *args), as_json("generate", "--model", export, *args))
        self.assertEqual(as_json("profile", "--model", base)["model"]["layers"], 2)
        completed = as_json("export", base, "--format", "hf", "--out", self.folder / "out")
        self.assertTrue(completed["logits"]["equal"])
        self.assertEqual((self.folder / "out" / "model.safetensors").read_bytes(), (export / "model.safetensors").read_bytes())
        ours = as_json("convert", export, self.folder / "ours", "--format", "checkpoint")
        self.assertTrue(ours["logits"]["equal"])
        self.assertEqual([c["step"] for c in as_json("checkpoint", "list", self.folder / "ours")["checkpoints"]], [0])
        self.assertEqual(as_json("eval", "--model", self.folder / "ours", "--data", text, "--seq", 32), scores[0])
        more = ["--data", text, "--seq", 32, "--batch", 6, "--steps", 2, "--sample", 0, "--dropout", 0]
        completed = run("train", "--model", base, *more, "--run", self.folder / "more")
        self.assertIn(f"weights from checkpoint {step}, F32", completed.stderr)
        self.assertLess(self.losses("more")[0], 3.5)
        shard = next(step.glob("rank-*.safetensors"))
        damaged = bytearray(shard.read_bytes())
        damaged[-5] ^= 1
        shard.write_bytes(damaged)
        self.expect_error("generate", "--model", base, *args, contains=[shard.name])
        self.expect_error("eval", "--model", self.folder, "--data", text, contains=[str(self.folder)])

    def test_rejects_unusable_models(self):
        export, text = self.exported(), self.folder / "text.txt"
        generate = ["generate", "--tokens", 8, "--prompt", "x", "--model"]
        self.expect_error(*generate, "gpt2", contains=["gpt2", "preset", "weights"])
        self.expect_error(*generate, self.folder / "none", contains=["none"])
        self.expect_error("eval", "--model", export / "config.json", "--data", text, contains=["config.json", "weights"])
        self.expect_error("eval", "--model", export, "--data", self.folder / "none.txt", contains=["none.txt"])
        self.expect_error("eval", "--model", export, "--data", text, "--seq", 65, contains=["65", "64 positions"])
        self.expect_error("eval", "--model", export, "--data", self.write("short.txt", "abc"), "--seq", 8, contains=["short.txt", "4 tokens"])
        self.expect_error("eval", "--model", export, "--data", text, "--seq", 0, contains=["--seq"], code=2)
        self.expect_error("eval", "--model", export, "--data", text, "--precision", "fp7", contains=["fp7"], code=2)
        self.expect_error("eval", "--model", export, contains=["--data"], code=2)
        self.write("big.bin", struct.pack("<4H", 1, 2, 300, 4)), self.write("big.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<iqqq", 4, 0, 0, 1))
        self.expect_error("eval", "--model", export, "--data", self.folder / "big", "--seq", 3, contains=["300", "257"])
        self.expect_error(*generate, export, "--tokens", 65, contains=["64 positions", "at most 64"])
        self.expect_error("generate", "--model", export, "--prompt", "x" * 70, "--tokens", 1, contains=["64 positions", "shorter prompt"])
        self.expect_error("generate", "--model", export, "--prompt-ids", "1,257", "--tokens", 1, contains=["257"])
        for bad in ("1,x", ",", "1,,2", "-1", "99999999999999999999"):
            self.expect_error("generate", "--model", export, f"--prompt-ids={bad}", "--tokens", 1, contains=["--prompt-ids"], code=2)
        self.expect_error("generate", "--model", export, "--tokens", 1, contains=["--prompt"], code=2)
        self.expect_error(*generate, export, "--greedy", "--temperature", 1, contains=["--greedy"], code=2)
        self.expect_error(*generate, export, "--top-p", 0, contains=["--top-p"], code=2)
        self.expect_error(*generate, export, "--temperature", "nan", contains=["--temperature"], code=2)
        self.expect_error(*generate, export, "--tokens", 0, contains=["--tokens"], code=2)
        weights = export / "model.safetensors"
        content = weights.read_bytes()
        weights.write_bytes(content[: len(content) // 2])
        self.expect_error(*generate, export, contains=["model.safetensors"])
        self.expect_error(*self.train_args("new", "--model", export), contains=["model.safetensors"])
        weights.write_bytes(content.replace(b"transformer.h.1.ln_2.bias", b"transformer.h.1.ln_2.bizz"))
        self.assertIn("transformer.h.1.ln_2.bias", run(*generate, export, code=1).stderr)

    def test_converts_models(self):
        export = self.exported()
        completed = as_json("convert", export, self.folder / "bf16", "--dtype", "bf16", "--shard-size", "20kB")
        self.assertEqual((completed["dtype"], completed["from_dtype"], completed["logits"]["equal"]), ("BF16", "F32", True))
        self.assertTrue(0 < completed["logits"]["rounding"] < 0.1)
        names = sorted(p.name for p in (self.folder / "bf16").iterdir())
        self.assertIn("model.safetensors.index.json", names)
        self.assertIn("tokenizer.json", names)
        self.assertNotIn("model.safetensors", names)
        back = as_json("convert", self.folder / "bf16", self.folder / "one")
        self.assertEqual((back["dtype"], back["logits"]), ("BF16", {"equal": True, "rounding": 0}))
        run("convert", export, self.folder / "copy", "--no-check")
        self.assertEqual((self.folder / "copy" / "model.safetensors").read_bytes(), (export / "model.safetensors").read_bytes())
        self.assertEqual(json.loads((self.folder / "copy" / "config.json").read_text()) | {"_name_or_path": ""}, json.loads((export / "config.json").read_text()) | {"_name_or_path": ""})
        self.assertIn("equal", run("export", export, "--format", "hf", "--out", self.folder / "again").stdout)
        self.expect_error("convert", export, self.folder / "copy", contains=["copy", "new or empty"])
        self.expect_error("convert", export, export, contains=["new or empty"])
        self.expect_error("convert", "gpt2", self.folder / "new", contains=["gpt2", "weights"])
        self.expect_error("convert", export, self.folder / "new", "--dtype", "fp7", contains=["fp7"], code=2)
        self.expect_error("convert", export, contains=["TO is missing (output folder"], code=2)
        self.expect_error("export", export, contains=["--out"], code=2)
        self.expect_error("export", export, "--out", self.folder / "new", "--format", "gguf", contains=["gguf"], code=2)
        self.assertFalse((self.folder / "new").exists())

    def test_training_starts_from_a_model_folder(self):
        export = self.exported()
        args = ["--data", self.folder / "text.txt", "--seq", 32, "--batch", 6, "--steps", 3, "--sample", 0, "--dropout", 0]
        completed = run("train", "--model", export, *args, "--run", self.folder / "more")
        self.assertIn(f"weights from folder {export}, F32", completed.stderr)
        self.assertLess(self.losses("more")[0], 3.5)
        settings = (self.folder / "more" / "settings.toml").read_text()
        self.assertRegex(settings, r"from-scratch = false +# default")
        run("train", "--model", export, *args, "--run", self.folder / "new", "--from-scratch")
        self.assertGreater(self.losses("new")[0], 5)
        run("train", "--model", export / "config.json", *args, "--run", self.folder / "bare")
        self.assertGreater(self.losses("bare")[0], 5)
        rates = [re.search(r"^lr = (\S+)", (self.folder / name / "settings.toml").read_text(), re.M) for name in ("more", "new")]
        self.assertAlmostEqual(float(rates[0][1]) * 10, float(rates[1][1]), delta=1e-9)
        self.expect_error("train", "--model", export, "--layers", 3, *args, "--run", self.folder / "no", contains=["overridden", "--from-scratch"])
        self.assertFalse((self.folder / "no").exists())

    def test_generation_streams_and_stops_on_ctrl_c(self):
        shape = "--model llama3-8b --layers 2 --hidden 32 --heads 2 --kv-heads 1 --ffn 48 --max-positions 64 --steps 1 --batch 2 --seq 16 --sample 0".split()
        run("train", *shape, "--data", self.write("a.txt", "some words " * 40), "--run", self.folder / "run")
        args = ["generate", "--model", self.folder / "run", "--prompt", "some", "--tokens", 10**6]
        process = subprocess.Popen([OPTIMUS, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertTrue(process.stdout.read(20))  # while most tokens are still to be generated
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)
        self.assertIn("64 positions", err.decode())  # rotary embeddings allow more positions, but the model was trained for 64
        out.decode()  # complete characters only
        self.assertFalse(any(c < 32 and c not in b"\n\t" or c == 127 for c in out))
        self.expect_error("generate", "--model", self.folder / "run", "--prompt", "some", "--tokens", 10**9, contains=["free"])

    def test_fine_tuning_example_runs(self):
        export = self.exported()
        documents = self.write("documents.jsonl", "".join(json.dumps({"text": f"note {i}: all is well with {i * 13 % 17}"}) + "\n" for i in range(300)))
        script = pathlib.Path(__file__).resolve().parents[2] / "examples" / "finetune.sh"
        args = [script, export, documents, self.folder / "tuned", "--steps", 20, "--seq", 32, "--sample", 0]
        completed = subprocess.run(list(map(str, args)), env={**os.environ, "OPTIMUS": OPTIMUS}, capture_output=True, text=True, timeout=300)
        self.assertEqual(completed.returncode, 0, completed.stderr)
        before, after = (float(re.search(rf"{word}: +loss ([0-9.]+)", completed.stdout)[1]) for word in ("before", "after"))
        self.assertLess(after, before - 0.1)
        self.assertTrue((self.folder / "tuned" / "run" / "export" / "config.json").exists())


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=1).result
    sys.exit(0 if result.wasSuccessful() else 1)
