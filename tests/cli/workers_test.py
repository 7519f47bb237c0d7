#!/usr/bin/env python3
"""Tests training by several worker processes from the outside: what the run folder reports about them, and what happens when a worker is
killed or stopped, or the run is interrupted. Needs $OPTIMUS (the binary) and only Python's standard library."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

from command_line import OPTIMUS, CommandLineTest, run

SHAPE = "--model gpt2 --layers 2 --hidden 32 --heads 2 --seq 24 --batch 6 --lr 1e-2 --dropout 0.1 --sample 0 --threads 1".split()


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Workers(CommandLineTest):
    def setUp(self):
        super().setUp()
        self.text = self.write("text.txt", "".join(f"line {i} of {i * 7 % 31}, and so on\n" for i in range(900)))

    def train_args(self, name, steps, *more):
        return ["train", *SHAPE, "--steps", steps, "--data", self.text, "--run", self.folder / name, "--static", *more]

    def plan_of_one(self):
        """A plan for one device: the other worker is unused, which every plan allows."""
        run(*self.train_args("alone", 12, "--devices", 1))
        return self.folder / "alone" / "plan.json"

    def start(self, *args):
        process = subprocess.Popen([OPTIMUS, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def rows(self, name):
        try:
            lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def curve(self, name):
        return [(row["step"], row["loss"], row["grad_norm"]) for row in self.rows(name)]

    def wait_for_steps(self, process, name, count):
        end = time.time() + 60
        while time.time() < end and process.poll() is None and len(self.rows(name)) < count:
            time.sleep(0.01)
        self.assertIsNone(process.poll(), process.poll() is not None and process.communicate()[1])

    def workers(self, name):
        return json.loads((self.folder / name / "workers.json").read_text())["workers"]

    def expect_end(self, process, code, pids, name):
        out, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, code, errors)
        end = time.time() + 5
        while any(map(is_alive, pids)) and time.time() < end:
            time.sleep(0.01)
        self.assertEqual([pid for pid in pids if is_alive(pid)], [])
        self.assertEqual(self.workers(name), [])
        return out, [line for line in errors.splitlines() if line.startswith("optimus: ")]

    def start_two_workers(self, name, steps=100000, *more):
        process = self.start(*self.train_args(name, steps, "--devices", 2, "--plan", self.plan_of_one(), *more))
        self.wait_for_steps(process, name, 3)
        workers = self.workers(name)
        self.assertEqual([worker["rank"] for worker in workers], [0, 1])
        self.assertTrue(all(is_alive(worker["pid"]) for worker in workers))
        self.assertTrue(all((self.folder / name / worker["log"]).exists() for worker in workers))
        return process, [worker["pid"] for worker in workers]

    def test_unused_worker_does_not_change_the_losses(self):
        plan = self.plan_of_one()
        result = run(*self.train_args("two", 12, "--devices", 2, "--plan", plan, "--json"))
        self.assertEqual(json.loads(result.stdout)["steps"], 12)
        self.assertEqual(self.curve("two"), self.curve("alone"))
        self.assertEqual(self.workers("two"), [])
        self.expect_error(*self.train_args("two", 12, "--devices", 2, "--plan", plan), contains=["already contains a run"])

    def test_default_is_one_worker_per_core(self):
        """The list of workers exists while the run is active, even if one process is enough."""
        cores = len(os.sched_getaffinity(0))
        for count, args in ((min(cores, 6), []), (1, ["--devices", 1])):
            name = f"default-{count}-{len(args)}"
            process = self.start(*self.train_args(name, 100000, *args))
            self.wait_for_steps(process, name, 2)
            workers = self.workers(name)
            self.assertEqual([worker["rank"] for worker in workers], list(range(count)))
            for worker in workers:
                self.assertEqual(set(worker), {"rank", "pid", "host", "device", "log"})
                self.assertTrue(is_alive(worker["pid"]))
                self.assertTrue((self.folder / name / worker["log"]).exists())
            pids = [worker["pid"] for worker in workers]
            self.assertEqual(len(set(pids)), count)
            process.send_signal(signal.SIGINT)
            self.expect_end(process, 130, pids, name)
            self.assertIn(f"devices = {count}", (self.folder / name / "settings.toml").read_text())

    def test_small_batches_use_few_workers(self):
        if len(os.sched_getaffinity(0)) == 1:
            self.skipTest("this machine has one core")
        result = run(*self.train_args("run", 2, "--heads", 1, "--hidden", 16, "--batch", 1))
        lines = [line for line in result.stderr.splitlines() if "no plan can distribute" in line]
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertIn("1 of ", lines[0])

    def test_profile_compares_prediction_and_measurement(self):
        """The profile has the times of every instruction of every rank, and the predicted times."""
        for name, args in (("one", ["--devices", 1]), ("tp", ["--devices", 2, "--tp", 2]), ("zero", ["--devices", 2, "--dp", 2, "--zero", 3])):
            file = self.folder / f"{name}.json"
            result = run(*self.train_args(name, 8, *args, "--profile", file, "--json"))
            self.assertEqual(json.loads(result.stdout)["steps"], 8)
            self.assertIn("ui.perfetto.dev", result.stderr)
            trace = json.loads(file.read_text())
            ranks = 1 if name == "one" else 2
            tracks, spans = {}, []
            for event in trace["traceEvents"]:
                if event["name"] == "thread_name":
                    tracks[event["pid"], event["tid"]] = event["args"]["name"]
                if event["ph"] == "X":
                    spans.append((event["pid"], tracks[event["pid"], event["tid"]], event["name"], event["ts"], event["ts"] + event["dur"]))
            lanes = {"one": {"compute", "reduce"}, "tp": {"compute", "tensor", "reduce"}, "zero": {"compute", "gather", "reduce"}}[name]
            self.assertEqual({(rank, lane) for rank, lane, *_ in spans}, {(rank, lane) for rank in range(ranks) for lane in lanes | {"steps"}})
            for rank in range(ranks):
                steps = [(what, begin, end) for at, lane, what, begin, end in spans if (at, lane) == (rank, "steps")]
                self.assertEqual([step[0] for step in steps], ["step 4", "step 5", "step 6"])
                for at, lane, what, begin, end in spans:
                    if at == rank and lane == "compute":  # 1 µs: the resolution of the file
                        self.assertTrue(any(step[1] - 1 <= begin and end <= step[2] + 1 for step in steps), what)
            profile = trace["profile"]
            self.assertEqual(len(profile["ranks"]), ranks)
            kinds = {row["kind"]: row for row in profile["instructions"]}
            for kind in ("forward layer mlp", "backward_weight layer attention", "optimizer layer"):
                self.assertGreater(kinds[kind]["measured"], 0)
                self.assertGreater(kinds[kind]["predicted"], 0)
            for rank in profile["ranks"]:
                memory = rank["memory_bytes"]
                self.assertAlmostEqual(memory["measured"]["total"] / memory["predicted"]["total"], 1, delta=0.1)
        self.expect_error(*self.train_args("bad", 8, "--profile", self.folder / "no" / "file.json"), contains=["--profile", "does not exist"])

    def test_any_plan_resumes_the_checkpoint_of_another(self):
        run(*self.train_args("whole", 12, "--precision", "fp64", "--devices", 1))
        run(*self.train_args("two", 12, "--precision", "fp64", "--devices", 2, "--tp", 2, "--save-every", 6, "--keep-last", 0))
        shutil.rmtree(self.folder / "two" / "checkpoints" / "step-12")
        for devices, args in ((1, []), (3, ["--dp", 3, "--zero", 3]), (4, ["--tp", 2, "--dp", 2, "--zero", 1])):
            name = f"on-{devices}"
            shutil.copytree(self.folder / "two", self.folder / name)
            run("train", "--resume", self.folder / name, "--devices", devices, *args)
            self.assertEqual([row["step"] for row in self.rows(name)], list(range(1, 13)))
            for row, reference in zip(self.rows(name), self.rows("whole")):  # fp64, another summation order: as in parallel_test.cpp
                self.assertAlmostEqual(row["loss"] / reference["loss"], 1, delta=1e-9)

    def test_pipeline_plan_resumes_as_other_plans(self):
        run(*self.train_args("whole", 8, "--devices", 1, "--precision", "fp64"))
        run(*self.train_args("saved", 8, "--devices", 4, "--tp", 2, "--pp", 2, "--microbatch", 1, "--precision", "fp64", "--save-every", 4, "--keep-last", 0))
        shutil.rmtree(self.folder / "saved" / "checkpoints" / "step-8")
        for number, plan in enumerate(("--pp 2 --schedule zero-bubble --microbatch 2", "--cp 2", "--dp 2 --zero 3")):
            name = f"goes-on-{number}"
            shutil.copytree(self.folder / "saved", self.folder / name)
            run("train", "--resume", self.folder / name, "--devices", 2, *plan.split())
            self.assertEqual(len(self.curve(name)), 8)
            for row, one in zip(self.curve(name), self.curve("whole")):
                self.assertAlmostEqual(row[1], one[1], delta=1e-9 * one[1], msg=plan)

    def test_evaluates_and_exports_a_sharded_run(self):
        """Every plan evaluates the model as one device does. In fp64 only the summation order differs."""
        run(*self.train_args("run", 6, "--devices", 3, "--dp", 3, "--zero", 3, "--precision", "fp64"))
        run("export", self.folder / "run", "--format", "hf", "--out", self.folder / "hf")
        args = ["eval", "--data", self.text, "--seq", 16, "--precision", "fp64", "--threads", 1, "--json", "--model"]
        one = json.loads(run(*args, self.folder / "run").stdout)
        self.assertEqual(json.loads(run(*args, self.folder / "hf").stdout)["tokens"], one["tokens"])
        # Exported in fp32, as all folders are: a relative error of 2^-24 per weight.
        self.assertAlmostEqual(json.loads(run(*args, self.folder / "hf").stdout)["loss"] / one["loss"], 1, delta=1e-6)
        for plan in ("--devices 2", "--tp 2", "--pp 2 --dp 2", "--cp 2", "--devices 4 --zero 3", "--devices 3 --batch 5"):
            shared = json.loads(run(*args, self.folder / "run", *plan.split()).stdout)
            self.assertEqual(shared["tokens"], one["tokens"], plan)
            self.assertAlmostEqual(shared["loss"] / one["loss"], 1, delta=1e-12, msg=plan)
        shared = json.loads(run(*args, self.folder / "run", "--plan", self.folder / "run" / "plan.json").stdout)
        self.assertAlmostEqual(shared["loss"] / one["loss"], 1, delta=1e-12)
        self.expect_error(*args, self.folder / "run", "--devices", 5, "--tp", 2, contains=["--devices 5"], code=2)

    def test_memory_checkpoint_survives_a_lost_worker(self):
        memory = self.folder / "memory"
        memory.mkdir()
        args = ["--devices", 3, "--dp", 3, "--zero", 3, "--precision", "fp64"]
        memory_args = ["--memory-every", 2, "--memory-folder", memory]
        run(*self.train_args("whole", 60, *args, *memory_args))
        self.assertEqual(list(memory.iterdir()), [])  # a completed run removes its memory checkpoints
        process = self.start(*self.train_args("run", 60, *args, *memory_args, "--save-every", 0))
        self.wait_for_steps(process, "run", 9)
        pids = [worker["pid"] for worker in self.workers("run")]
        os.kill(pids[1], signal.SIGKILL)
        _, lines = self.expect_end(process, 1, pids, "run")
        self.assertRegex(lines[0], r"lost with the ranks: .*; the last complete checkpoint is from step \d+, in memory")
        step = int(lines[0].split("checkpoint is from step ")[1].split(",")[0])
        self.assertGreaterEqual(step, 6)
        self.assertEqual(len(list(memory.iterdir())), 1)
        shutil.copytree(self.folder / "run", self.folder / "copy")
        self.assertIn("has no checkpoint", run("train", "--resume", self.folder / "copy", "--memory-every", 0).stderr)
        self.assertEqual(len(list(memory.iterdir())), 1)
        run("train", "--resume", self.folder / "run")
        self.assertEqual(list(memory.iterdir()), [])
        for row, reference in zip(self.rows("run"), self.rows("whole")):
            self.assertAlmostEqual(row["loss"] / reference["loss"], 1, delta=1e-9)
        self.assertIn("--memory-folder", run(*self.train_args("bad", 4, "--memory-every", 2, "--memory-folder", self.folder / "none"), code=1).stderr)

    def test_clears_memory_checkpoints(self):
        memory = self.folder / "memory"
        memory.mkdir()
        process = self.start(*self.train_args("run", 100000, "--devices", 1, "--memory-every", 2, "--memory-folder", memory))
        self.wait_for_steps(process, "run", 5)
        process.kill()
        process.communicate(timeout=20)
        self.assertEqual(len(list(memory.iterdir())), 1)
        self.assertIn("removed", run("checkpoint", "clear", self.folder / "run").stdout)
        self.assertEqual(list(memory.iterdir()), [])
        self.assertIn("contains no state", run("checkpoint", "clear", self.folder / "run").stdout)
        self.expect_error("checkpoint", "clear", self.folder / "nothing", contains=["not a run folder"])

    def test_16_workers_learn_what_one_device_learns(self):
        """24 layers on 16 workers, pp4 x tp2 x dp2, compared with one device."""
        shape = "--layers 24 --hidden 16 --batch 8 --seq 8 --precision fp64".split()
        run(*self.train_args("one", 2, "--devices", 1, *shape))
        run(*self.train_args("sixteen", 2, "--devices", 16, "--pp", 4, "--tp", 2, "--dp", 2, "--microbatch", 1, *shape))
        self.assertTrue((self.folder / "sixteen" / "logs" / "rank-15.log").exists())
        for row, one in zip(self.curve("sixteen"), self.curve("one")):
            self.assertAlmostEqual(row[1], one[1], delta=1e-9 * one[1])
            self.assertAlmostEqual(row[2], one[2], delta=1e-9 * one[2])

    def test_reports_a_killed_worker(self):
        process, pids = self.start_two_workers("run")
        os.kill(pids[1], signal.SIGKILL)
        _, lines = self.expect_end(process, 1, pids, "run")
        self.assertEqual(len(lines), 1, lines)
        for word in (f"rank 1 (process {pids[1]} on ", "signal 9", "rank 0 reported: all_reduce of the step agreement in world {0 1}, epoch 0", "; rank 0 saved step "):
            self.assertIn(word, lines[0])
        merged = json.loads(run("logs", self.folder / "run", "--json").stdout)["lines"]
        self.assertEqual([line["time"] for line in merged], sorted(line["time"] for line in merged))
        self.assertEqual(merged[-1], {"time": merged[-1]["time"], "rank": None, "text": "failed: " + lines[0].removeprefix("optimus: ")})
        self.assertEqual({line["rank"] for line in merged}, {None, 0, 1})
        self.assertTrue(any("all_reduce of the step agreement" in line["text"] and "done in" in line["text"] for line in merged))
        self.assertIn("step 1/", run("logs", self.folder / "run", "--rank", 0, "--around", 0).stdout)  # including the console output
        self.expect_error("logs", self.folder / "run", "--rank", 7, contains=["rank 7 does not exist"])
        self.expect_error("logs", self.folder / "nothing", contains=["no logs"])

    def test_reports_a_stopped_worker(self):
        process, pids = self.start_two_workers("run", 100000, "--timeout", "1s")
        os.kill(pids[1], signal.SIGSTOP)
        _, lines = self.expect_end(process, 1, pids, "run")
        self.assertEqual(len(lines), 1, lines)
        for word in (f"rank 1 (process {pids[1]} on ", "does not respond", "rank 1 missing"):
            self.assertIn(word, lines[0])

    def test_interrupted_run_is_resumed(self):
        process, pids = self.start_two_workers("run", 80, "--save-every", "0")
        process.send_signal(signal.SIGINT)
        self.expect_end(process, 130, pids, "run")
        self.assertLess(len(self.rows("run")), 80)
        run("train", "--resume", self.folder / "run")
        run(*self.train_args("whole", 80, "--devices", 1))
        self.assertEqual(self.curve("run"), self.curve("whole"))

    def test_resumed_run_keeps_its_plan(self):
        """Even if the planner would choose another plan now, because the setting that asked for stages was removed."""
        run(*self.train_args("run", 6, "--devices", 2, "--pp", 2))
        settings = self.folder / "run" / "settings.toml"
        settings.write_text("".join(line for line in settings.read_text().splitlines(True) if not line.startswith("pp ")))
        before = (self.folder / "run" / "plan.json").read_text()
        stderr = run("train", "--resume", self.folder / "run", "--steps", 8).stderr
        self.assertNotIn("(best of", stderr)
        self.assertEqual((self.folder / "run" / "plan.json").read_text(), before)
        run("train", "--resume", self.folder / "run", "--steps", 10, "--devices", 2)
        self.assertNotEqual((self.folder / "run" / "plan.json").read_text(), before)

    def test_workers_end_when_the_command_is_killed(self):
        process, pids = self.start_two_workers("run")
        process.kill()
        process.communicate(timeout=20)
        end = time.time() + 5
        while any(map(is_alive, pids)) and time.time() < end:
            time.sleep(0.01)
        self.assertEqual([pid for pid in pids if is_alive(pid)], [])


if __name__ == "__main__":
    unittest.main()
