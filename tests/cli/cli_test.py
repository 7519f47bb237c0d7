#!/usr/bin/env python3
"""The command line from outside, as a script uses it: results, messages, exit codes, files. Needs $OPTIMUS (the binary) and nothing
but Python's standard library."""
import json
import math
import os
import pathlib
import pty
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

OPTIMUS = os.environ["OPTIMUS"]


def run(*words, code=0, cwd=None, env=None, **how):
    done = subprocess.run([OPTIMUS, *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120, cwd=cwd, env=env, **how)
    if code is not None and done.returncode != code:
        raise AssertionError(f"optimus {words} gave {done.returncode}, not {code}: {done.stderr or done.stdout}")
    return done


def as_json(*words, **how):
    return json.loads(run(*words, "--json", **how).stdout)


def schema_problems(schema, value, root, where="plan"):
    """The part of JSON Schema that docs/plan.schema.json uses."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].split("/")[-1]]
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    if "type" in schema and not isinstance(value, kinds[schema["type"]]):
        yield f"{where} is not {schema['type']}"
        return
    if "enum" in schema and value not in schema["enum"] or "const" in schema and value != schema["const"]:
        yield f"{where} is {value}"
    if "minimum" in schema and value < schema["minimum"] or "maximum" in schema and value > schema["maximum"]:
        yield f"{where} is {value}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{where} is {value}"
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from schema_problems(schema["items"], item, root, f"{where}[{i}]")
    if isinstance(value, dict):
        yield from (f"{where}.{k} is missing" for k in schema.get("required", []) if k not in value)
        yield from (f"{where}.{k} is unknown" for k in value if k not in schema["properties"])
        for k in value.keys() & schema["properties"].keys():
            yield from schema_problems(schema["properties"][k], value[k], root, f"{where}.{k}")


class CommandLine(unittest.TestCase):
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

    def test_help_and_version(self):
        out = run("--help").stdout
        commands = [line.split("  ")[1].strip() for line in out.splitlines() if line.startswith("  ")]
        self.assertIn("data prepare", commands)
        for command in commands:
            text = run(*command.split(), "--help").stdout
            self.assertIn(f"usage: optimus {command}", text)
            self.assertIn("--json", text)
        self.assertRegex(run("--version").stdout, r"^optimus \d+\.\d+\.\d+")
        self.assertIn("data prepare", run("data", "--help").stdout)
        self.assertIn("data prepare", run("data", code=2).stderr)
        run(code=2)

    def test_wrong_usage_is_2_and_names_the_nearest(self):
        self.refused("profile", "--modell", "gpt2", says=["--modell", "--model"], code=2)
        self.refused("profle", says=["profile"], code=2)
        self.refused("data", "prepair", says=["prepair"], code=2)
        self.refused("profile", "--seq", "many", says=["--seq", "many"], code=2)
        self.refused("profile", "--model", code=2)
        self.refused("profile", code=2)
        self.refused("profile", "gpt2", says=["gpt2"], code=2)
        self.refused("data", "prepare", "--out", self.folder / "x", says=["inputs"], code=2)

    def test_settings_file(self):
        good = self.write("run.toml", 'model = "gpt2"\nlayers = 3  # fewer\n[data]\nmin_tokens = 5\n')
        self.assertEqual(as_json("profile", "--config", good)["model"]["layers"], 3)
        self.assertEqual(as_json("profile", "--config", good, "--layers", 4)["model"]["layers"], 4)
        shown = run("profile", "--config", good, "--heads", 6, "--show-settings").stdout
        for line in ('model = "gpt2"  # ' + str(good) + ":1", "heads = 6  # flag", "tied = false  # default"):
            self.assertIn(line + "\n", shown)
        bad = self.write("bad.toml", '# comment\nmodle = "gpt2"\n')
        self.refused("profile", "--config", bad, says=["bad.toml:2", "modle", "model"])
        self.refused("profile", "--config", self.write("worse.toml", "model = [\n"), says=["worse.toml"])
        self.refused("profile", "--config", self.folder / "absent.toml", says=["absent.toml"])
        self.refused("profile", "--config", self.folder, says=["folder"])

    def test_profile_of_a_model(self):
        model = as_json("profile", "--model", "gpt2")["model"]
        self.assertEqual((model["parameters"], model["layers"]), (124439808, 12))
        self.assertGreater(model["flops_per_token"], 6 * 124e6)
        small = as_json("profile", "--model", "llama3-8b", "--layers", 2, "--hidden", 96, "--heads", 6, "--kv-heads", 2, "--ffn", 160, "--vocab", 257)
        # Embedding and head; per layer q and o, k and v (2 of 6 heads), gate, up and down, two norms; the last norm.
        self.assertEqual(small["model"]["parameters"], 2 * 257 * 96 + 2 * (2 * 96 * 96 + 2 * 96 * 32 + 3 * 96 * 160 + 2 * 96) + 96)
        self.refused("profile", "--model", "gpt22", says=["gpt22", "gpt2"])
        self.refused("profile", "--model", "gpt2", "--hidden", 100, "--heads", 3, says=["heads"])
        self.refused("profile", "--model", "gpt2", "--tied", "--untied", says=["--tied", "--untied"])
        self.refused("profile", "--model", self.write("m/config.json", '{"model_type": "mamba"}').parent, says=["mamba"])
        self.refused("profile", "--model", self.write("c.json", "{"), says=["c.json"])
        self.refused("profile", "--model", "gpt2", "--layers", 10**15, says=["layers"])

    def test_prepare_writes_megatrons_layout_byte_for_byte(self):
        documents = ["hello", "ünï©ode ✓ 漢字", "a" * 70000]
        self.write("in.jsonl", "".join(json.dumps({"text": d}) + "\n" for d in documents))
        summary = as_json("data", "prepare", self.folder / "in.jsonl", "--out", self.folder / "tok", "--tokenizer", "bytes", "--threads", 2)
        # An independent writer of the format, in a few lines.
        tokens = [list(d.encode()) + [256] for d in documents]
        lengths, offsets = [len(t) for t in tokens], [2 * sum(map(len, tokens[:i])) for i in range(len(tokens))]
        golden_bin = b"".join(struct.pack(f"<{len(t)}H", *t) for t in tokens)
        golden_idx = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(tokens), len(tokens) + 1)
        golden_idx += struct.pack(f"<{len(tokens)}i", *lengths) + struct.pack(f"<{len(tokens)}q", *offsets) + struct.pack(f"<{len(tokens) + 1}q", *range(len(tokens) + 1))
        self.assertEqual((self.folder / "tok.bin").read_bytes(), golden_bin)
        self.assertEqual((self.folder / "tok.idx").read_bytes(), golden_idx)
        self.assertEqual((summary["documents"], summary["tokens"]), (3, sum(lengths)))
        info = as_json("data", "inspect", self.folder / "tok", "--document", 0)
        self.assertEqual((info["documents"], info["tokens"], info["dtype"]), (3, sum(lengths), "uint16"))
        self.assertEqual(info["document"]["ids"], tokens[0])
        data = as_json("profile", "--data", self.folder / "tok")["data"]
        self.assertEqual((data["documents"], data["tokens"]), (3, sum(lengths)))
        self.assertEqual(as_json("profile", "--data", self.folder / "in.jsonl")["data"]["tokens"], sum(lengths))
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["in.jsonl", "tok.bin", "tok.idx"])

    def test_int32_when_the_vocabulary_is_large(self):
        vocabulary = {chr(0x4E00 + i): i for i in range(20000)} | {f"w{i}": 20000 + i for i in range(50000)}
        tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": None, "decoder": None}
        tokenizer["model"] = {"type": "WordPiece", "unk_token": "w0", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocabulary}
        path = self.write("tokenizer.json", json.dumps(tokenizer))
        self.write("in.txt", "w49999 w1")
        run("data", "prepare", self.folder / "in.txt", "--out", self.folder / "tok", "--tokenizer", path)
        self.assertEqual((self.folder / "tok.bin").read_bytes(), struct.pack("<2i", 69999, 20001))
        self.assertEqual(as_json("data", "inspect", self.folder / "tok")["dtype"], "int32")

    def test_filters(self):
        lines = ["short", "a longer document", "a longer document", "held out text"]
        source = self.write("in.jsonl", "".join(json.dumps({"body": t}) + "\n" for t in lines))
        held = self.write("held.txt", "held  out\ntext")
        words = ["data", "prepare", source, "--out", self.folder / "t", "--text-key", "body", "--min-tokens", 6, "--dedup", "--exclude", held]
        # --exclude names a text file, whose key plays no part.
        summary = as_json(*words)
        self.assertEqual(summary["documents"], 1)
        self.assertEqual(summary["dropped"], {"empty": 0, "short": 1, "duplicate": 1, "held_out": 1})

    def test_bad_data_leaves_nothing(self):
        out = ["--out", self.folder / "out" / "t"]
        (self.folder / "out").mkdir()
        self.refused("data", "prepare", self.folder / "absent.txt", *out, says=["absent.txt"])
        self.refused("data", "prepare", self.write("bad.jsonl", '{"text": "ok"}\n{"text": \n'), *out, says=["bad.jsonl", "line 2"])
        self.refused("data", "prepare", self.write("key.jsonl", '{"txt": "ok"}\n'), *out, says=["key.jsonl", "line 1", "txt", "--text-key"])
        self.refused("data", "prepare", self.write("empty.txt", ""), *out, says=["no document"])
        self.refused("data", "prepare", self.write("a.txt", "x"), *out, "--tokenizer", self.write("t.json", "{}"), says=["t.json"])
        self.refused("data", "prepare", self.write("a.txt", "x"), "--out", self.folder / "no" / "such" / "t", says=["no/such"])
        self.assertEqual(list((self.folder / "out").iterdir()), [])
        self.refused("data", "inspect", self.folder / "nothing", says=["nothing.idx"])
        self.write("cut.bin", b"xx"), self.write("cut.idx", b"MMIDIDX\0\0" + b"\1" * 10)
        self.refused("data", "inspect", self.folder / "cut", says=["cut.idx"])

    def test_a_full_disk_leaves_nothing(self):
        self.write("in.txt", "x" * 3_000_000)
        (self.folder / "out").mkdir()

        def no_room():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

        self.refused("data", "prepare", self.folder / "in.txt", "--out", self.folder / "out" / "t", says=["File too large"], preexec_fn=no_room)
        self.assertEqual(list((self.folder / "out").iterdir()), [])

    def test_an_unwritable_folder_is_named(self):
        locked = self.folder / "locked"
        locked.mkdir(mode=0o500)
        self.folder.chmod(0o755)
        # Root may write everywhere: become nobody first.
        lower = (lambda: (os.setgid(65534), os.setuid(65534))) if os.geteuid() == 0 else None
        self.refused("data", "prepare", self.write("a.txt", "x"), "--out", locked / "t", says=["locked", "Permission denied"], preexec_fn=lower)

    def test_output_is_a_pipe_or_terminal(self):
        self.write("in.txt", "hello")
        done = run("data", "prepare", self.folder / "in.txt", "--out", self.folder / "t")
        self.assertEqual(done.stderr, "")  # nothing to say about quick work
        parent, child = pty.openpty()
        subprocess.run([OPTIMUS, "data", "prepare", self.folder / "in.txt", "--out", self.folder / "t"], stderr=child, stdout=subprocess.PIPE, check=True)
        os.close(child)

    def test_plans(self):
        plan = {"format": "optimus-plan", "version": 1, "model": "gpt2", "blocks": 14, "batch": 8, "sequence_length": 64, "schedule": "1f1b", "precision": "bf16"}
        stage = lambda devices, blocks, **more: {"devices": devices, "layers": [{"blocks": blocks, **more}]}
        plan["pipelines"] = [{"microbatches": [{"count": 4, "sequences": 2}], "stages": [stage("0..1", "0..6", tp=2), stage("2..3", "7..13", zero=1)]}]
        a = self.write("a.json", json.dumps(plan))
        self.assertIn("stage 1", run("explain", a).stdout)
        self.assertIn("F0 F1", run("explain", a, "--timeline").stdout)
        self.assertIn("step_gate", run("explain", a, "--program", "--rank", 3).stdout)
        self.assertEqual(as_json("explain", a)["devices"], 4)
        self.refused("explain", a, "--program", "--rank", 9, says=["9"])
        plan["schedule"] = "gpipe"
        b = self.write("b.json", json.dumps(plan))
        self.assertEqual(as_json("plan", "--diff", a, b)["changes"], ["layout: pp2 tp1..2 dp1..2 zero0..1 1f1b → pp2 tp1..2 dp1..2 zero0..1 gpipe", "schedule: 1f1b → gpipe"])
        self.assertIn("equal", run("plan", "--diff", a, a).stdout)
        plan["pipelines"][0]["stages"][0]["devices"] = "1..2"
        self.refused("explain", self.write("c.json", json.dumps(plan)), says=["c.json", "device 2"])
        self.refused("explain", self.folder / "none.json", says=["none.json"])
        self.refused("plan", "--diff", a, code=2)

    def test_simulate(self):
        stage = lambda devices, blocks, **more: {"devices": devices, "layers": [{"blocks": blocks, **more}]}
        plan = {"format": "optimus-plan", "version": 1, "model": "gpt2", "blocks": 14, "batch": 8, "sequence_length": 1024, "schedule": "1f1b", "precision": "bf16",
                "pipelines": [{"microbatches": [{"count": 4, "sequences": 2}], "stages": [stage("0..1", "0..6", tp=2), stage("2..3", "7..13", zero=1)]}]}
        path = self.write("p.json", json.dumps(plan))
        step = as_json("simulate", "--plan", path, "--cluster", "a100x4", "--trace", self.folder / "t.json")
        self.assertAlmostEqual(sum(step["time"].values()), step["step_seconds"])
        self.assertAlmostEqual(step["tokens_per_second"], 8 * 1024 / step["step_seconds"])
        self.assertTrue(step["fits"] and 0 < step["mfu"] < 1 and step["memory_bytes"] > 0)
        self.assertEqual(sum(e["ph"] == "X" for e in json.loads((self.folder / "t.json").read_text())["traceEvents"]), 2 * 8 + 2)
        self.assertIn("a step takes", run("simulate", "--plan", path, "--cluster", "h100x8", "--timeline").stdout)
        self.refused("simulate", "--plan", path, "--cluster", "a100x2", says=["device 3", "2 devices"])
        self.refused("simulate", "--plan", path, "--cluster", "a100x4", "--software", "megatron", says=["megatron"])
        self.refused("simulate", "--plan", path, says=["--cluster"], code=2)
        trace = self.write("t.csv", "0,add,a\n0,add,b\n0,add,c\n0,add,d\n60000,remove,a\n90000,add,a\n900000,add,e\n")
        lost = as_json("simulate", "--plan", path, "--cluster", "a100x4", "--failures", trace)
        self.assertEqual([r["policy"] for r in lost], ["never"])
        self.assertTrue(0 < lost[0]["fraction_of_oracle"] < 1)
        self.refused("simulate", "--plan", path, "--cluster", "a100x4", "--failures", self.write("x.csv", "0,add,a\nx\n"), says=["x.csv:2"])
        runs = pathlib.Path(__file__).resolve().parents[2] / "bench" / "data" / "published_runs.csv"
        report = as_json("simulate", "--runs", runs)
        self.assertLess(report["summary"]["step_time"]["mape"], 0.08)
        self.assertLess(report["summary"]["left_out_source"]["mape"], 0.15)
        self.assertEqual(len(report["rows"]), 627)
        self.assertEqual(report["summary"]["skipped"], sum(r["skipped"] is not None for r in report["rows"]))
        self.refused("simulate", "--runs", self.write("broken.csv", 'id,gpu\n"a,b\n'), says=["broken.csv:2"])

    def test_words_in_any_order(self):
        source = self.write("in.txt", "hello")
        run("data", "prepare", "--tokenizer", "bytes", source, "--out", self.folder / "a")
        run("data", "prepare", f"--out={self.folder / 'b'}", "--exclude", self.write("x.txt", "other"), source)
        run("data", "prepare", "--out", self.folder / "[c,d]", source)
        self.assertEqual(sorted(p.name for p in self.folder.glob("*.idx")), ["[c,d].idx", "a.idx", "b.idx"])
        twice = self.write("twice.jsonl", '{"text": "x"}\n' * 2)
        for words, documents in (["--dedup"], 1), (["--dedup=false"], 2), (["--dedup=true"], 1), ([], 2):
            self.assertEqual(as_json("data", "prepare", twice, "--out", self.folder / "t", *words)["documents"], documents)
        self.refused("data", "prepare", twice, "--out", self.folder / "t", "--dedup=maybe", says=["--dedup", "maybe"], code=2)

    def test_output_inside_the_input_is_not_read(self):
        for i in range(8):
            self.write(f"in/{i}.txt", "x" * 400_000)
        for _ in range(2):  # the second time the output of the first is there
            self.assertEqual(as_json("data", "prepare", self.folder / "in", "--out", self.folder / "in" / "tok")["documents"], 8)

    def test_odd_names_and_links(self):
        (self.folder / "loop").mkdir()
        (self.folder / "loop" / "self").symlink_to("self")
        (self.folder / "loop" / ".self").symlink_to(".self")
        (self.folder / "loop" / "up").symlink_to("..")
        self.refused("data", "prepare", self.folder / "loop", "--out", self.folder / "t", says=["no text file"])
        self.refused("explain", "no\nsuch", says=["no\\x0asuch"])
        self.refused("profile", "--config", self.write("deep.toml", ".".join(["a"] * 200_000) + "=1"), says=["deep.toml:1"])
        self.refused("profile", "--config", self.write("lists.toml", "a = " + "[" * 200_000), says=["lists.toml:1"])

    def test_interrupted_work_leaves_nothing(self):
        self.write("in.jsonl", '{"text": "' + "some words " * 50 + '"}\n' * 1)
        with open(self.folder / "in.jsonl", "a") as f:
            f.write(('{"text": "' + "some words " * 50 + '"}\n') * 400_000)
        (self.folder / "out").mkdir()
        work = subprocess.Popen([OPTIMUS, "data", "prepare", self.folder / "in.jsonl", "--out", self.folder / "out" / "t"], stderr=subprocess.DEVNULL)
        deadline = time.time() + 30
        while not list((self.folder / "out").iterdir()) and work.poll() is None and time.time() < deadline:
            time.sleep(0.01)
        work.send_signal(signal.SIGINT)
        self.assertEqual(work.wait(30), 130)
        self.assertEqual(list((self.folder / "out").iterdir()), [])

    def test_results_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([OPTIMUS, "profile", "--model", "gpt2"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stderr), (1, "optimus: cannot write to standard output: No space left on device\n"))

    def test_the_schema_says_what_the_program_reads(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        schema = json.loads((root / "docs" / "plan.schema.json").read_text())
        for path in (root / "examples" / "plans").iterdir():
            plan = json.loads(path.read_text())
            self.assertEqual(list(schema_problems(schema, plan, schema)), [], path)
            shown = as_json("explain", path)["plan"]
            self.assertEqual(list(schema_problems(schema, shown, schema)), [])
            for broken in ({**plan, "extra": 1}, {**plan, "batch": 0}, {**plan, "schedule": "x"}, {k: v for k, v in plan.items() if k != "blocks"}):
                self.assertNotEqual(list(schema_problems(schema, broken, schema)), [])
                self.refused("explain", self.write("broken.json", json.dumps(broken)))

    def checkpoint(self, step=3, version=1):
        """A checkpoint as docs/checkpoints.md describes it, from an independent writer. The sums are of XXH3's own library."""
        header = json.dumps({"master/w[0:2, 0:2]": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
        header += b" " * (-len(header) % 8)
        state = {"format": "optimus-training-state", "version": 1, "step": 3, "updates": 3, "samples": 24, "seed": 1, "plan_epoch": 0}
        state |= {"precision": "fp32", "loss_scale": {"value": 65536.0, "good_steps": 0}}
        folder = f"run/checkpoints/step-{step}/"
        self.write(folder + "rank-00000.safetensors", struct.pack("<Q", len(header)) + header + struct.pack("<4f", 1, 2, 3, 4))
        self.write(folder + "state.json", json.dumps(state) + "\n")
        files = [{"name": "rank-00000.safetensors", "bytes": 112, "xxh3": "00ae3b09dc302ba9"}, {"name": "state.json", "bytes": 191, "xxh3": "fc7e5d266a6c82f1"}]
        pieces = [{"fields": ["master"], "boxes": [[0, 0, 0, 2, 0, 2]]}]
        manifest = {"format": "optimus-checkpoint", "version": version, "step": step, "files": files, "tensors": [{"name": "w", "shape": [2, 2]}], "pieces": pieces}
        self.write(folder + "manifest.json", json.dumps(manifest))
        return self.folder / folder

    def test_checkpoints(self):
        first, second = self.checkpoint(3), self.checkpoint(12)
        self.write("run/checkpoints/step-20.tmp-1/rank-00000.safetensors", "half")
        run_folder = self.folder / "run"
        size = lambda folder: sum(p.stat().st_size for p in folder.iterdir())
        expected = [{"step": 3, "bytes": size(first), "whole": True}, {"step": 12, "bytes": size(second), "whole": True}, {"step": 20, "bytes": 4, "whole": False}]
        self.assertEqual(as_json("checkpoint", "list", run_folder), {"checkpoints": expected})
        self.assertEqual(as_json("checkpoint", "verify", run_folder), {"checkpoints": expected})
        self.assertEqual(as_json("checkpoint", "list", first), {"checkpoints": expected[:1]})
        shown = as_json("checkpoint", "show", first)["checkpoints"][0]
        self.assertEqual((shown["step"], shown["parameters"], shown["fields"], shown["state"]["samples"]), (3, 4, ["master"], 24))
        self.assertEqual(as_json("checkpoint", "show", run_folder)["checkpoints"][0]["step"], 12)
        for command in "list", "verify", "show":
            self.assertIn("step", run("checkpoint", command, run_folder).stdout)
        shard = second / "rank-00000.safetensors"
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        done = run("checkpoint", "verify", run_folder, "--json", code=1)
        self.assertEqual([c["whole"] for c in json.loads(done.stdout)["checkpoints"]], [True, False, False])
        self.assertIn(f"{shard} is damaged", done.stderr)
        self.assertEqual(run("checkpoint", "verify", first).returncode, 0)
        shard.unlink()
        self.assertEqual([c["whole"] for c in as_json("checkpoint", "list", run_folder)["checkpoints"]], [True, False, False])
        self.assertIn("is missing", run("checkpoint", "verify", run_folder, code=1).stderr)
        self.assertEqual(as_json("checkpoint", "show", run_folder)["checkpoints"][0]["step"], 3)

    def test_what_is_no_checkpoint(self):
        self.refused("checkpoint", "list", self.folder, says=["neither a run", str(self.folder)])
        self.refused("checkpoint", "show", self.folder / "absent", says=["absent"])
        self.refused("checkpoint", "list", code=2)
        self.write("empty/settings.toml", "")
        self.assertEqual(as_json("checkpoint", "list", self.folder / "empty"), {"checkpoints": []})
        self.refused("checkpoint", "show", self.folder / "empty", says=["no whole checkpoint"])
        self.refused("checkpoint", "show", self.checkpoint(3, version=2), says=["manifest.json", "version 2", "version 1"])

    def test_doctor(self):
        checks = {c["name"]: c for c in as_json("doctor", code=None)["checks"]}
        self.assertTrue(checks["optimus"]["ok"])
        for check in checks.values():
            self.assertEqual(set(check), {"name", "ok", "found", "fix"})
            self.assertTrue(check["ok"] or check["fix"], check)
        launcher = as_json("doctor", code=None, env={**os.environ, "RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "7"})
        self.assertIn("torchrun, rank 1 of 4, meeting at a:7", [c["found"] for c in launcher["checks"]])

    def train_words(self, run_folder, *more):
        text = self.folder / "text.txt"
        if not text.exists():
            text.write_text("".join(f"line {i} of {i * 7 % 31}, and so on\n" for i in range(900)))
        shape = "--model gpt2 --layers 2 --hidden 32 --heads 2 --seq 24 --batch 6 --steps 8 --lr 1e-2 --dropout 0 --sample 10".split()
        return ["train", *shape, "--data", text, "--run", self.folder / run_folder, *more]

    def losses(self, run_folder):
        return [row["loss"] for row in self.metrics(run_folder)]

    def metrics(self, run_folder):
        return [json.loads(line) for line in (self.folder / run_folder / "metrics.jsonl").read_text().splitlines()]

    def test_training_leaves_its_folder(self):
        result = as_json(*self.train_words("a"))
        self.assertEqual(result["steps"], 8)
        rows = self.metrics("a")
        self.assertEqual([row["step"] for row in rows], list(range(1, 9)))
        self.assertTrue({"loss", "grad_norm", "lr", "tokens", "seconds", "tokens_per_second", "epoch"} <= rows[0].keys())
        self.assertEqual(rows[0]["tokens"], 6 * 24)
        self.assertLess(rows[-1]["loss"], rows[0]["loss"])
        self.assertEqual(rows[-1]["loss"], result["loss"])
        settings = (self.folder / "a" / "settings.toml").read_text()
        self.assertRegex(settings, r"steps = 8 +# flag")
        self.assertRegex(settings, r"microbatch = 6 +# planner")
        self.assertIn("plan", as_json("explain", self.folder / "a" / "plan.json"))
        self.assertTrue(list((self.folder / "a" / "tensorboard").glob("events.out.tfevents.*")))
        run(*self.train_words("b", "--microbatch", "4", "--recompute", "full", "--precision", "fp32"))
        for a, b in zip(self.losses("a"), self.losses("b")):
            self.assertAlmostEqual(a, b, delta=1e-5 * a)  # sums in another order
        run(*self.train_words("c", "--plan", self.folder / "b" / "plan.json"))
        self.assertEqual(self.losses("b"), self.losses("c"))

    def test_several_inputs(self):
        for name in ("a", "b"):
            (self.folder / f"{name}.txt").write_text(f"text {name} " * 400)
        run("data", "prepare", self.folder / "a.txt", self.folder / "b.txt", "--out", self.folder / "both", "--tokenizer", "bytes")
        self.assertEqual(as_json("data", "inspect", self.folder / "both")["documents"], 2)
        blend = ["--data", "0.7", self.folder / "a.txt", "0.3", self.folder / "b.txt"]
        words = self.train_words("blend")
        at = words.index("--data")
        run(*words[:at], *blend, *words[at + 2:])
        self.assertEqual(len(self.losses("blend")), 8)

    def test_training_refuses_before_it_starts(self):
        run(*self.train_words("a"))
        self.assertIn("holds a run already", run(*self.train_words("a"), code=1).stderr)
        for words, says in (
            (["--batch", "0"], "--batch"),
            (["--precision", "fp7"], "fp7"),
            (["--device", "tpu"], "tpu"),
            (["--devices", "3"], "--devices"),
            (["--plan", self.folder / "none.json"], "none.json"),
            (["--data", self.folder / "none.txt"], "none.txt"),
            (["--seq", "999999"], "999999"),
            (["--microbatch", "7"], "--microbatch"),
        ):
            done = run(*self.train_words("new", *words), code=None)
            self.assertIn(done.returncode, (1, 2), words)
            self.assertIn(says, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
            self.assertFalse((self.folder / "new").exists(), words)

    def test_training_ends_on_ctrl_c(self):
        words = [OPTIMUS, *map(str, self.train_words("long", "--steps", "1000000"))]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
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
        """A small GPT-2 with 64 positions that was trained for some steps, as a Hugging Face folder."""
        self.result = as_json(*self.train_words(name, "--max-positions", 64, "--steps", 30, "--seq", 32, "--export", "hf", *more))
        return self.folder / name / "export"

    def test_a_trained_model_is_exported_evaluated_and_generates(self):
        export, text = self.exported(), self.folder / "text.txt"
        self.assertEqual(sorted(p.name for p in export.iterdir()), ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
        self.assertEqual(as_json("profile", "--model", export)["model"]["layers"], 2)
        scores = as_json("eval", "--model", export, "--data", text, "--seq", 32)
        tokens = len(text.read_bytes()) + 1  # the end of the document
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

        words = ["generate", "--model", export, "--prompt", "line 1", "--tokens", 40]
        greedy = as_json(*words, "--greedy")
        self.assertEqual((len(greedy["ids"]), greedy["prompt_ids"]), (40, list(b"line 1")))
        self.assertEqual(greedy["text"], bytes(i for i in greedy["ids"] if i < 256).decode(errors="replace"))
        by_ids = as_json("generate", "--model", export, "--prompt-ids", ",".join(map(str, b"line 1")), "--tokens", 40, "--greedy")
        self.assertEqual(by_ids, greedy)
        self.assertEqual(run(*words, "--greedy").stdout, greedy["text"] + "\n")
        chosen = [as_json(*words, "--seed", seed, "--top-p", 0.9)["ids"] for seed in (3, 3, 4)]
        self.assertEqual(chosen[0], chosen[1])
        self.assertNotEqual(chosen[0], chosen[2])
        # From the folder comes what the training generated from memory.
        self.assertEqual(as_json("generate", "--model", export, "--prompt", "", "--tokens", 10)["text"], self.result["sample"])
        config = json.loads((export / "generation_config.json").read_text())
        config["eos_token_id"] = [greedy["ids"][4], 256]
        (export / "generation_config.json").write_text(json.dumps(config))
        stopped = as_json(*words, "--greedy", "--stop")["ids"]
        self.assertEqual(stopped, greedy["ids"][: greedy["ids"].index(greedy["ids"][4]) + 1])
        self.assertEqual(as_json(*words, "--greedy")["ids"], greedy["ids"])

    def test_runs_and_checkpoints_are_models_too(self):
        export, text, base = self.exported(), self.folder / "text.txt", self.folder / "base"
        step = base / "checkpoints" / "step-30"
        scores = [as_json("eval", "--model", model, "--data", text, "--seq", 32) for model in (export, base, step)]
        self.assertEqual(scores[0], scores[1])
        self.assertEqual(scores[0], scores[2])
        words = ["--prompt", "line", "--tokens", 12, "--greedy"]
        self.assertEqual(as_json("generate", "--model", base, *words), as_json("generate", "--model", export, *words))
        self.assertEqual(as_json("profile", "--model", base)["model"]["layers"], 2)
        done = as_json("export", base, "--format", "hf", "--out", self.folder / "out")
        self.assertTrue(done["logits"]["equal"])
        self.assertEqual((self.folder / "out" / "model.safetensors").read_bytes(), (export / "model.safetensors").read_bytes())
        ours = as_json("convert", export, self.folder / "ours", "--format", "checkpoint")
        self.assertTrue(ours["logits"]["equal"])
        self.assertEqual([c["step"] for c in as_json("checkpoint", "list", self.folder / "ours")["checkpoints"]], [0])
        self.assertEqual(as_json("eval", "--model", self.folder / "ours", "--data", text, "--seq", 32), scores[0])
        more = ["--data", text, "--seq", 32, "--batch", 6, "--steps", 2, "--sample", 0, "--dropout", 0]
        done = run("train", "--model", base, *more, "--run", self.folder / "more")
        self.assertIn(f"weights of checkpoint {step}, F32", done.stderr)
        self.assertLess(self.losses("more")[0], 3.5)
        shard = next(step.glob("rank-*.safetensors"))
        damaged = bytearray(shard.read_bytes())
        damaged[-5] ^= 1
        shard.write_bytes(damaged)
        self.refused("generate", "--model", base, *words, says=[shard.name])
        self.refused("eval", "--model", self.folder, "--data", text, says=[str(self.folder)])

    def test_models_that_cannot_be_used(self):
        export, text = self.exported(), self.folder / "text.txt"
        generate = ["generate", "--tokens", 8, "--prompt", "x", "--model"]
        self.refused(*generate, "gpt2", says=["gpt2", "preset", "weights"])
        self.refused(*generate, self.folder / "none", says=["none"])
        self.refused("eval", "--model", export / "config.json", "--data", text, says=["config.json", "weights"])
        self.refused("eval", "--model", export, "--data", self.folder / "none.txt", says=["none.txt"])
        self.refused("eval", "--model", export, "--data", text, "--seq", 65, says=["65", "64 positions"])
        self.refused("eval", "--model", export, "--data", self.write("short.txt", "abc"), "--seq", 8, says=["short.txt", "4 tokens"])
        self.refused("eval", "--model", export, "--data", text, "--seq", 0, says=["--seq"], code=2)
        self.refused("eval", "--model", export, "--data", text, "--precision", "fp7", says=["fp7"])
        self.refused("eval", "--model", export, says=["--data"], code=2)
        self.write("big.bin", struct.pack("<4H", 1, 2, 300, 4)), self.write("big.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<iqqq", 4, 0, 0, 1))
        self.refused("eval", "--model", export, "--data", self.folder / "big", "--seq", 3, says=["300", "257"])
        self.refused(*generate, export, "--tokens", 65, says=["64 positions", "at most 64"])
        self.refused("generate", "--model", export, "--prompt", "x" * 70, "--tokens", 1, says=["64 positions", "shorter prompt"])
        self.refused("generate", "--model", export, "--prompt-ids", "1,257", "--tokens", 1, says=["257"])
        for bad in ("1,x", ",", "1,,2", "-1", "99999999999999999999"):
            self.refused("generate", "--model", export, f"--prompt-ids={bad}", "--tokens", 1, says=["--prompt-ids"], code=2)
        self.refused("generate", "--model", export, "--tokens", 1, says=["--prompt"], code=2)
        self.refused(*generate, export, "--greedy", "--temperature", 1, says=["--greedy"], code=2)
        self.refused(*generate, export, "--top-p", 0, says=["--top-p"], code=2)
        self.refused(*generate, export, "--temperature", "nan", says=["--temperature"], code=2)
        self.refused(*generate, export, "--tokens", 0, says=["--tokens"], code=2)
        weights = export / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[: len(whole) // 2])
        self.refused(*generate, export, says=["model.safetensors"])
        self.refused(*self.train_words("new", "--model", export), says=["model.safetensors"])
        weights.write_bytes(whole.replace(b"transformer.h.1.ln_2.bias", b"transformer.h.1.ln_2.bizz"))
        self.assertIn("transformer.h.1.ln_2.bias", run(*generate, export, code=1).stderr)

    def test_convert(self):
        export = self.exported()
        done = as_json("convert", export, self.folder / "bf16", "--dtype", "bf16", "--shard-size", "20kB")
        self.assertEqual((done["dtype"], done["from_dtype"], done["logits"]["equal"]), ("BF16", "F32", True))
        self.assertTrue(0 < done["logits"]["rounding"] < 0.1)
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
        self.refused("convert", export, self.folder / "copy", says=["copy", "new or empty"])
        self.refused("convert", export, export, says=["new or empty"])
        self.refused("convert", "gpt2", self.folder / "new", says=["gpt2", "weights"])
        self.refused("convert", export, self.folder / "new", "--dtype", "fp7", says=["fp7"], code=2)
        self.refused("convert", export, says=["to"], code=2)
        self.refused("export", export, says=["--out"], code=2)
        self.refused("export", export, "--out", self.folder / "new", "--format", "gguf", says=["gguf"], code=2)
        self.assertFalse((self.folder / "new").exists())

    def test_training_goes_on_from_a_folder(self):
        export = self.exported()
        words = ["--data", self.folder / "text.txt", "--seq", 32, "--batch", 6, "--steps", 3, "--sample", 0, "--dropout", 0]
        done = run("train", "--model", export, *words, "--run", self.folder / "more")
        self.assertIn(f"weights of folder {export}, F32", done.stderr)
        self.assertLess(self.losses("more")[0], 3.5)
        settings = (self.folder / "more" / "settings.toml").read_text()
        self.assertRegex(settings, r"from-scratch = false +# default")
        run("train", "--model", export, *words, "--run", self.folder / "new", "--from-scratch")
        self.assertGreater(self.losses("new")[0], 5)
        run("train", "--model", export / "config.json", *words, "--run", self.folder / "bare")
        self.assertGreater(self.losses("bare")[0], 5)
        rates = [re.search(r"^lr = (\S+)", (self.folder / name / "settings.toml").read_text(), re.M) for name in ("more", "new")]
        self.assertAlmostEqual(float(rates[0][1]) * 10, float(rates[1][1]), delta=1e-9)
        self.refused("train", "--model", export, "--layers", 3, *words, "--run", self.folder / "no", says=["overridden", "--from-scratch"])
        self.assertFalse((self.folder / "no").exists())

    def test_generation_streams_and_ends_on_ctrl_c(self):
        shape = "--model llama3-8b --layers 2 --hidden 32 --heads 2 --kv-heads 1 --ffn 48 --max-positions 64 --steps 1 --batch 2 --seq 16 --sample 0".split()
        run("train", *shape, "--data", self.write("a.txt", "some words " * 40), "--run", self.folder / "run")
        words = ["generate", "--model", self.folder / "run", "--prompt", "some", "--tokens", 10**6]
        process = subprocess.Popen([OPTIMUS, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertTrue(process.stdout.read(20))  # while most is still to come
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)
        self.assertIn("64 positions", err.decode())  # rotary positions go on, but the model is made for fewer
        out.decode()  # whole characters
        self.assertFalse(any(c < 32 and c not in b"\n\t" or c == 127 for c in out))
        self.refused("generate", "--model", self.folder / "run", "--prompt", "some", "--tokens", 10**9, says=["free"])

    def test_fine_tuning_example(self):
        export = self.exported()
        documents = self.write("documents.jsonl", "".join(json.dumps({"text": f"note {i}: all is well with {i * 13 % 17}"}) + "\n" for i in range(300)))
        script = pathlib.Path(__file__).resolve().parents[2] / "examples" / "finetune.sh"
        words = [script, export, documents, self.folder / "tuned", "--steps", 20, "--seq", 32, "--sample", 0]
        done = subprocess.run(list(map(str, words)), env={**os.environ, "OPTIMUS": OPTIMUS}, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        before, after = (float(re.search(rf"{word}: +loss ([0-9.]+)", done.stdout)[1]) for word in ("before", "after"))
        self.assertLess(after, before - 0.1)
        self.assertTrue((self.folder / "tuned" / "run" / "export" / "config.json").exists())

    def test_starts_quickly(self):
        # Not a speed test: a start that takes seconds means that something is built or searched each time.
        best = min(self.time_of("profile", "--model", "gpt2", "--json") for _ in range(5))
        self.assertLess(best, 2)

    def time_of(self, *words):
        began = time.perf_counter()
        run(*words)
        return time.perf_counter() - began


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=1).result
    sys.exit(0 if result.wasSuccessful() else 1)
