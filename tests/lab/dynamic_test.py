#!/usr/bin/env python3
"""What bench/dynamic keeps of its plays, and what it makes of them. Plays nothing."""
import argparse
import importlib.machinery
import importlib.util
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import dynamic_figures as figures  # noqa: E402
import dynamic_lab as lab  # noqa: E402
import dynamic_plays as plays  # noqa: E402
import dynamic_tables as tables  # noqa: E402
import dynamic_ways as ways  # noqa: E402

SCENARIO = "decide_slow_device"
MARKS = {SCENARIO: "as it is"}
SWITCH = [{"kind": "switch", "epoch": 1, "predicted_gain": 0.5}, {"kind": "realised", "epoch": 1, "realised_gain": 0.6}]


def load_bench():
    """bench/dynamic itself, whose name has no ending."""
    spec = importlib.util.spec_from_loader("dynamic", importlib.machinery.SourceFileLoader("dynamic", str(BENCH / "dynamic")))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bench = load_bench()


def result(way, seconds, decisions=()):
    return lab.Result(way, seconds, 2, [2.0, 1.0], [seconds / 2, seconds / 2], list(decisions), ["{}"], [])


class Plays(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "plays.jsonl"

    def filled(self):
        known = plays.Plays(self.path, "build", MARKS)
        for number in range(3):
            for way, seconds, decisions in (("undisturbed", 10, ()), ("kept", 20, ()), ("rule", 13 + number / 10, SWITCH)):
                known.add(SCENARIO, number, way, result(way, seconds, decisions))
        return known

    def test_what_was_played_is_there_again(self):
        known = self.filled()
        known.add(SCENARIO, 0, "fsdp2", None)  # it failed, and is not tried again
        again = plays.Plays(self.path, "build", MARKS)
        self.assertEqual(again.found, known.found)
        self.assertIn((SCENARIO, 0, "fsdp2"), again)
        self.assertEqual([set(one) for one in again.rounds(SCENARIO)], 3 * [{"undisturbed", "kept", "rule"}])

    def test_a_line_that_was_cut_off_is_played_again(self):
        self.filled()
        whole = self.path.read_bytes()
        self.path.write_bytes(whole[:-30])
        known = plays.Plays(self.path, "build", MARKS)
        self.assertNotIn((SCENARIO, 2, "rule"), known)
        known.add(SCENARIO, 2, "rule", result("rule", 13.2, SWITCH))
        self.assertEqual(self.path.read_bytes(), whole)

    def test_who_only_reads_changes_nothing(self):
        self.filled()
        cut = self.path.read_bytes()[:-30]  # as if somebody still wrote
        self.path.write_bytes(cut)
        self.assertEqual(len(plays.Plays(self.path).found), 8)
        self.assertEqual(self.path.read_bytes(), cut)

    def test_builds_are_not_mixed(self):
        self.filled()
        with self.assertRaisesRegex(lab.training.Failed, "another build"):
            plays.Plays(self.path, "another", MARKS)
        self.assertEqual(len(plays.Plays(self.path).found), 9)  # who only reads asks for none

    def test_scenarios_that_changed_are_not_mixed(self):
        self.filled()
        with self.assertRaisesRegex(lab.training.Failed, f"another {SCENARIO}"):
            plays.Plays(self.path, "build", {SCENARIO: "changed"})
        self.assertEqual(len(plays.Plays(self.path, "build", {"decide_quiet": "changed"}).found), 9)  # that one is not there
        self.assertEqual(len(plays.Plays(self.path).found), 9)

    def test_files_without_marks_of_scenarios_are_only_read(self):
        self.filled()
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        for line in lines:
            del line["scenario_mark"]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with self.assertRaisesRegex(lab.training.Failed, "older than the marks"):
            plays.Plays(self.path, "build", MARKS)
        self.assertIn("slow device", tables.all_of(plays.Plays(self.path)))

    def test_the_start_plan_may_be_the_best_static_one(self):
        known = self.filled()
        self.assertFalse(known.has_looked(SCENARIO))
        known.add(SCENARIO, plays.HINDSIGHT, "slower", result("slower", 25))
        known.add(SCENARIO, plays.HINDSIGHT, "given up", None)
        self.assertEqual(known.best(SCENARIO), (20, plays.START))
        known.add(SCENARIO, plays.HINDSIGHT, "quicker", result("quicker", 15))
        self.assertEqual(known.best(SCENARIO), (15, "quicker"))
        known.add(SCENARIO, plays.HINDSIGHT, plays.LOOKED, None)
        self.assertTrue(known.has_looked(SCENARIO))

    def test_tables(self):
        known = self.filled()
        self.assertAlmostEqual(figures.won_back(known.rounds(SCENARIO))[0], 0.7)
        row = tables.row(known, SCENARIO)
        for part in ("| slow device | 3 | 10.0 s | 20.0 s |", "| 13.1 s |", "+69.0 % (+68.0 % to +70.0 %)", "+34.5 % (+34.0 % to +35.0 %)", "| +50 %, +60 % |"):
            self.assertIn(part, row)
        self.assertEqual(row.count("|"), tables.HEADER.splitlines()[0].count("|"))
        short = json.loads(json.dumps(tables.short(known)))
        self.assertEqual(short[0]["seconds"], {"kept": [20, 20, 20], "rule": [13, 13.1, 13.2], "undisturbed": [10, 10, 10]})
        self.assertEqual(short[0]["rule_gains"], 3 * [[0.5, 0.6]])

    def test_tables_of_a_round_that_was_stopped(self):
        known = self.filled()
        known.add(SCENARIO, 3, "rule", result("rule", 13))  # neither kept nor undisturbed
        known.add(SCENARIO, 4, "rule", result("rule", 13))
        known.add(SCENARIO, 4, "kept", result("kept", 20))
        self.assertEqual(len(figures.won_back(known.rounds(SCENARIO))), 3)
        self.assertIn("| slow device | 5 | 10.0 s (3) | 20.0 s (4) |", tables.row(known, SCENARIO))

    def test_the_best_plan_is_found_with_fewer_candidates(self):
        known = self.filled()
        known.add(SCENARIO, plays.HINDSIGHT, "plan-1", result("plan-1", 15))
        known.add(SCENARIO, plays.HINDSIGHT, plays.LOOKED, None)
        asked = argparse.Namespace(ways=["rule", "kept", "best"], candidates=1, among=None)
        for names, expected in ((("plan-0", "plan-1"), "of plan-1"), (("plan-0",), None)):
            one = bench.Bench(lab.read(SCENARIO), asked, known, None)
            with mock.patch.object(ways, "candidates", lambda *_: [(name, f"of {name}") for name in names]):
                if expected:
                    self.assertEqual(one._scenario("best"), expected)
                else:
                    with self.assertRaisesRegex(lab.training.Failed, "plan-1, its best static plan, is not found again"):
                        one._scenario("best")


    def looks(self, known, among, found):
        """Looks for the best among these, of which those that are found can be played."""
        def play(_, way, most=math.inf):
            if way not in found:
                raise lab.training.Failed(f"{way} fails")
            return result(way, found[way])
        asked = argparse.Namespace(ways=["rule", "best"], candidates=9, among=among)
        with mock.patch.object(ways, "candidates", lambda *_: [(name, name) for name in ("plan-0", "plan-1", "plan-2")]), mock.patch.object(bench, "play", play):
            bench.Bench(lab.read(SCENARIO), asked, known, None)._look_for_best()

    def test_the_best_is_looked_for_without_the_start_plan(self):
        known = plays.Plays(self.path, "build", MARKS)
        known.add(SCENARIO, 0, "rule", result("rule", 13))
        with self.assertRaisesRegex(lab.training.Failed, "none of the static plans could be played"):
            self.looks(known, ["plan-2"], {})
        self.looks(known, ["plan-0", "plan-1"], {"plan-0": 15, "plan-1": 14})
        self.assertEqual(known.best(SCENARIO), (14, "plan-1"))
        self.looks(known, ["plan-0", "plan-1"], {})  # nothing is played again
        with self.assertRaisesRegex(lab.training.Failed, "among others"):
            self.looks(known, ["plan-0"], {})


class Losses(unittest.TestCase):
    def test_are_compared(self):
        other = result("rule", 1)
        other.losses = [2.0, 1.1]
        bench.check_losses({"kept": result("kept", 1), "rule": result("rule", 1), "fsdp2": other}, SCENARIO)
        with self.assertRaisesRegex(lab.training.Failed, "losses of rule differ"):
            bench.check_losses({"kept": result("kept", 1), "rule": other}, SCENARIO)

    def test_nothing_to_compare(self):
        bench.check_losses({"fsdp2": result("fsdp2", 1)}, SCENARIO)
        bench.check_losses({}, SCENARIO)


class Marks(unittest.TestCase):
    def test_change_with_the_scenario_and_its_plans(self):
        with tempfile.TemporaryDirectory() as folder:
            copied = pathlib.Path(folder)
            shutil.copytree(lab.SCENARIOS, copied / "scenarios")
            shutil.copytree(lab.training.PLANS, copied / "plans")
            with mock.patch.object(lab, "SCENARIOS", copied / "scenarios"), mock.patch.object(lab.training, "PLANS", copied / "plans"):
                one = lab.read("decide_quiet")
                seen = [lab.mark(lab.files_of(one))]
                for path in (copied / "plans" / "dp4.json", copied / "scenarios" / "decide_quiet.toml"):
                    path.write_text(path.read_text() + "\n")
                    seen.append(lab.mark(lab.files_of(one)))
                (copied / "plans" / "even_pp4.json").write_text("{}")  # of others
                self.assertEqual(lab.mark(lab.files_of(one)), seen[-1])
                self.assertEqual(len(set(seen)), 3)


class Ways(unittest.TestCase):
    def test_of_scenarios(self):
        self.assertNotIn("undisturbed", ways.usual(lab.read("decide_heavy_stage")))  # nothing happens there that could be left out
        self.assertEqual(ways.usual(lab.read("decide_quiet")), ["rule", "watched", "kept"])
        with self.assertRaisesRegex(lab.training.Failed, "copies alone"):
            ways.check(["rule", "fsdp2"], lab.read("decide_heavy_stage"))
        for asked, missing in ((["best"], "name rule"), (["best", "rule"], "name kept")):
            with self.assertRaisesRegex(lab.training.Failed, missing):
                ways.check(asked, lab.read(SCENARIO))
        ways.check(["best", "rule"], lab.read(SCENARIO), ["without host2"])
        words = ways.scenario_of(lab.read(SCENARIO), "learned", None, None).runs[0].words
        self.assertEqual(words[-2:], ["--policy", "learned"])
        self.assertEqual(words.count("--policy"), 1)

    def test_static_plans_by_name(self):
        found = [("rule's plan 1", "a"), ("without host2", "b")]
        self.assertEqual(ways.named(iter(found), None), found)
        self.assertEqual(ways.named(iter(found), ["without host2"]), found[1:])
        with self.assertRaisesRegex(lab.training.Failed, "no static plan 'plan-7'; there are rule's plan 1, without host2"):
            ways.named(iter(found), ["without host2", "plan-7"])

    def planned_names(self, folder, late):
        """With a planner that is too late for the plans of these numbers; each plan is another."""

        def run(words, **_):
            out = pathlib.Path(words[words.index("--out") + 1])
            if out.name in late:
                raise subprocess.TimeoutExpired(words, ways.PLANNING_SECONDS)
            out.mkdir(parents=True)
            (out / "plan.json").write_text(out.name)
            return subprocess.CompletedProcess(words, 0)

        with mock.patch.object(ways.subprocess, "run", run):
            return [path.read_text() for path in ways.planned(lab.read(SCENARIO), folder)]

    def test_plans_that_are_not_found_in_time_are_left_out(self):
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            every = self.planned_names(pathlib.Path(first), ())
            self.assertGreater(len(every), 5)
            self.assertEqual(self.planned_names(pathlib.Path(second), ("plan-0", "plan-3")), [name for name in every if name not in ("plan-0", "plan-3")])


if __name__ == "__main__":
    unittest.main()
