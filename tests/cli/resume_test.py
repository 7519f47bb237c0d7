#!/usr/bin/env python3
"""Tests stopping and resuming from the outside: a run that is killed, interrupted, moved or damaged and then resumed learns what an
uninterrupted run learns, bit for bit. Needs $OPTIMUS (the binary) and only Python's standard library. OPTIMUS_LONG=1: many more kills."""
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

OPTIMUS = os.environ["OPTIMUS"]
IS_LONG = os.environ.get("OPTIMUS_LONG") == "1"
SEED = int(os.environ.get("OPTIMUS_SEED", "1"))
STEPS = 24


class Resume(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(f"line {i} of {i * 7 % 31}, and so on\n" for i in range(900)))
        self.random = random.Random(SEED)

    def train_args(self, run, *more):
        shape = "--model gpt2 --layers 2 --hidden 32 --heads 2 --seq 24 --batch 6 --lr 1e-2 --dropout 0.1 --sample 0 --devices 1 --threads 1".split()
        return [OPTIMUS, "train", *shape, "--steps", STEPS, "--data", self.text, "--run", self.folder / run, *more]

    def call(self, args, code=0):
        result = subprocess.run(list(map(str, args)), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def resume(self, run, *more, code=0):
        return self.call([OPTIMUS, "train", "--resume", self.folder / run, *more], code)

    def start(self, args):
        return subprocess.Popen(list(map(str, args)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def rows(self, run):
        return [json.loads(line) for line in (self.folder / run / "metrics.jsonl").read_text().splitlines()]

    def curve(self, run):
        rows = self.rows(run)
        self.assertEqual([row["step"] for row in rows], list(range(1, len(rows) + 1)))
        return [(row["loss"], row["grad_norm"], row["lr"]) for row in rows]

    def checkpoints(self, run):
        listed = self.call([OPTIMUS, "checkpoint", "list", self.folder / run, "--json"]).stdout
        return [entry["step"] for entry in json.loads(listed)["checkpoints"] if entry["whole"]]

    def lines(self, run):
        try:
            return (self.folder / run / "metrics.jsonl").read_text().count("\n")
        except FileNotFoundError:
            return 0

    def signal_at_random_instant(self, process, run, signal_number):
        """Sends the signal after a random number of further steps, at a random instant of the next step."""
        target, end = self.lines(run) + self.random.randint(0, 6), time.time() + 60
        while time.time() < end and process.poll() is None and self.lines(run) < target:
            time.sleep(0.001)
        time.sleep(self.random.random() * 0.02)
        process.send_signal(signal_number)
        process.communicate(timeout=60)

    def test_killed_runs_learn_the_same(self):
        for precision in ("fp32", "bf16", "fp16"):
            undisturbed, killed = f"whole-{precision}", f"killed-{precision}"
            more = ("--precision", precision, "--save-every", "2", "--warmup", "3")
            self.call(self.train_args(undisturbed, *more))
            kills = 0
            for signal_number in [signal.SIGKILL, signal.SIGINT] * (40 if IS_LONG else 2):
                if not (self.folder / killed / "settings.toml").exists():
                    shutil.rmtree(self.folder / killed, ignore_errors=True)
                    args = self.train_args(killed, *more)
                elif self.lines(killed) >= STEPS:
                    break
                else:
                    args = [OPTIMUS, "train", "--resume", self.folder / killed]
                process = self.start(args)
                self.signal_at_random_instant(process, killed, signal_number)
                kills += process.returncode != 0
            result = subprocess.run([OPTIMUS, "train", "--resume", str(self.folder / killed)], capture_output=True, text=True, timeout=120)
            self.assertTrue(result.returncode == 0 or "has completed its" in result.stderr, result.stderr)
            self.assertGreater(kills, 0)
            self.assertEqual(self.curve(killed), self.curve(undisturbed), precision)
            self.assertEqual(self.checkpoints(killed)[-1], STEPS)

    def test_interrupted_run_saves_before_it_ends(self):
        process = self.start(self.train_args("run", "--steps", 100000, "--save-every", "0"))
        end = time.time() + 60
        while time.time() < end and self.lines("run") < 4:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 130)
        self.assertIn("--resume", errors)
        self.assertEqual(self.checkpoints("run"), [self.lines("run")])

    def test_keeps_the_requested_checkpoints(self):
        self.call(self.train_args("run", "--save-every", "3", "--keep-last", "2", "--keep-every", "6"))
        self.assertEqual(self.checkpoints("run"), [6, 12, 18, 21, 24])
        saved = [row["saved"] for row in self.rows("run") if "saved" in row]
        self.assertTrue(saved and all(s["bytes"] > 0 and s["pause_seconds"] >= 0 and s["write_seconds"] > 0 for s in saved))

    def test_flags_override_settings_and_the_folder_may_move(self):
        self.call(self.train_args("part", "--warmup", "2", "--lr-schedule", "constant"))
        (self.folder / "part").rename(self.folder / "moved")
        self.resume("moved", "--steps", 2 * STEPS)
        rows = self.rows("moved")
        self.assertEqual([row["step"] for row in rows], list(range(1, 2 * STEPS + 1)))
        self.assertEqual(rows[-1]["lr"], rows[5]["lr"])
        self.assertRegex((self.folder / "moved" / "settings.toml").read_text(), rf"steps = {2 * STEPS} +# flag")
        self.assertIn("has completed its", self.resume("moved", code=1).stderr)
        # With another batch size the run continues with the next samples.
        self.resume("moved", "--steps", 2 * STEPS + 2, "--batch", "4", "--microbatch", "2")
        self.assertEqual(self.rows("moved")[-1]["tokens"], 4 * 24)

    def test_names_damaged_files(self):
        self.call(self.train_args("run", "--save-every", "8", "--keep-last", "0"))
        expected = self.curve("run")

        def flip(step):
            shard = next((self.folder / "run" / "checkpoints" / f"step-{step}").glob("*.safetensors"))
            content = bytearray(shard.read_bytes())
            content[len(content) // 2] ^= 1
            shard.write_bytes(content)
            return shard.name

        shard = flip(24)
        result = self.resume("run", "--steps", STEPS)
        self.assertIn(f"step-24/{shard}", result.stderr)
        self.assertEqual(self.curve("run"), expected)
        for step in self.checkpoints("run"):
            flip(step)
        result = self.resume("run", code=1)
        self.assertIn("all checkpoints of the run are damaged", result.stderr)

    def test_failed_save_does_not_end_the_run(self):
        (self.folder / "run").mkdir()
        (self.folder / "run" / "checkpoints").write_text("in the way")
        result = self.call(self.train_args("run", "--save-every", "8"), code=1)
        self.assertEqual(self.lines("run"), STEPS)
        self.assertIn("training continues", result.stderr)
        self.assertIn("step 24 was not written", result.stderr.strip().splitlines()[-1])

    def test_resumes_dropout_of_a_family_without_a_dropout_setting(self):
        def train_args(run, steps):
            shape = "--model llama3-8b --layers 2 --hidden 32 --heads 2 --kv-heads 1 --ffn 64 --seq 24 --batch 4 --sample 0 --dropout 0.3 --lr 1e-3 --warmup 0 --lr-schedule constant".split()
            return [OPTIMUS, "train", *shape, "--data", self.text, "--run", self.folder / run, "--steps", steps]

        self.call(train_args("whole", 8))
        self.call(train_args("parts", 4))
        self.resume("parts", "--steps", 8)
        self.assertEqual(self.curve("parts"), self.curve("whole"))

    def test_resumes_the_fp8_maxima(self):
        def train_args(run, steps):
            shape = "--model llama3-8b --layers 4 --hidden 32 --heads 2 --kv-heads 2 --ffn 64 --seq 24 --batch 4 --sample 0 --precision fp8 --lr 1e-3 --warmup 0 --lr-schedule constant --devices 1".split()
            return [OPTIMUS, "train", *shape, "--data", self.text, "--run", self.folder / run, "--steps", steps]

        self.call(train_args("whole", 8))
        self.call(train_args("parts", 4))
        state = json.loads((self.folder / "parts" / "checkpoints" / "step-4" / "state.json").read_text())
        self.assertEqual(state["fp8"]["steps"], 4)
        self.assertEqual({name.split(".")[1] for name in state["fp8"]["maxima"]}, {"1", "2"})  # all layers except the first and the last
        self.resume("parts", "--steps", 8)
        self.assertEqual(self.curve("parts"), self.curve("whole"))

    def test_rejected_resume_leaves_the_run_unchanged(self):
        self.call(self.train_args("run", "--save-every", "8", "--keep-last", "0"))
        run = self.folder / "run"
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        for args, code in ((["--plan", "nowhere.json", "--steps", 30], 1), (["--hidden", 64, "--steps", 30], 1), ([], 1)):
            self.resume("run", *args, code=code)
        self.call([OPTIMUS, "train", "--resume", run / "checkpoints" / "step-24"], 1)
        self.assertEqual({path: path.read_bytes() for path in before}, before)
        self.resume("run", "--steps", STEPS + 1, "--batch", "2")  # although the run's micro-batch was 6
        # Truncated files count as damage. Without a valid checkpoint the run does not restart from the beginning on its own.
        for shard in run.glob("checkpoints/*/*.safetensors"):
            shard.write_bytes(shard.read_bytes()[:-1])
        lines = self.lines("run")
        self.assertIn("all checkpoints of the run are damaged", self.resume("run", "--steps", 40, code=1).stderr)
        self.assertEqual(self.lines("run"), lines)

    def test_damaged_later_checkpoints_do_not_displace_the_new_one(self):
        self.call(self.train_args("run", "--save-every", "8", "--keep-last", "0"))
        shard = next((self.folder / "run" / "checkpoints" / "step-24").glob("*.safetensors"))
        content = bytearray(shard.read_bytes())
        content[-100] ^= 1
        shard.write_bytes(content)
        self.resume("run", "--steps", 20, "--keep-last", 1)
        self.assertIn(20, self.checkpoints("run"))

    def test_only_one_process_may_use_a_run(self):
        process = self.start(self.train_args("run", "--steps", 100000, "--save-every", "5"))
        end = time.time() + 60
        while time.time() < end and self.lines("run") < 6:
            time.sleep(0.01)
        self.assertIn("another process", self.resume("run", code=1).stderr)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)

    def test_full_disk_does_not_end_the_run(self):
        def limit_file_size():  # to 200 KB: metrics fit, a shard does not
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

        result = subprocess.run(list(map(str, self.train_args("run", "--save-every", "8"))), capture_output=True, text=True, timeout=120, preexec_fn=limit_file_size)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(self.lines("run"), STEPS)
        self.assertIn("training continues", result.stderr)
        self.assertEqual(self.checkpoints("run"), [])
        # With enough space, the run restarts from the beginning, because partially written checkpoints do not count.
        self.resume("run")
        self.assertEqual(self.checkpoints("run")[-1], STEPS)

    def test_reports_usage_errors(self):
        self.assertIn("not a run folder", self.resume("none", code=1).stderr)
        self.assertIn("soon", self.call(self.train_args("run", "--save-every", "soon"), code=2).stderr)
        self.assertFalse((self.folder / "run").exists())
        self.call(self.train_args("run"))
        self.assertIn("its own folder", self.call([OPTIMUS, "train", "--resume", self.folder / "run", "--run", self.folder / "b"], code=2).stderr)
        result = self.call([OPTIMUS, "train", "--resume", self.folder / "run", "--model", "gpt2", "--layers", "3", "--steps", "30"], code=1)
        self.assertIn("a different model", result.stderr)


if __name__ == "__main__":
    print(f"seed {SEED}", file=sys.stderr)
    result = unittest.main(exit=False, verbosity=1).result
    sys.exit(0 if result.wasSuccessful() else 1)
