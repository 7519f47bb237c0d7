#!/usr/bin/env python3
"""What bench/dynamic keeps of its plays, and what it makes of them. Plays nothing."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import dynamic_figures as figures  # noqa: E402
import dynamic_lab as lab  # noqa: E402
import dynamic_plays as plays  # noqa: E402
import dynamic_tables as tables  # noqa: E402
import dynamic_ways as ways  # noqa: E402

SCENARIO = "decide_slow_device"
SWITCH = [{"kind": "switch", "epoch": 1, "predicted_gain": 0.5}, {"kind": "realised", "epoch": 1, "realised_gain": 0.6}]


def result(way, seconds, decisions=()):
    return lab.Result(way, seconds, 2, [2.0, 1.0], [seconds / 2, seconds / 2], list(decisions), ["{}"], [])


class Plays(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "plays.jsonl"

    def filled(self):
        known = plays.Plays(self.path, "build")
        for number in range(3):
            for way, seconds, decisions in (("undisturbed", 10, ()), ("kept", 20, ()), ("rule", 13 + number / 10, SWITCH)):
                known.add(SCENARIO, number, way, result(way, seconds, decisions))
        return known

    def test_what_was_played_is_there_again(self):
        known = self.filled()
        known.add(SCENARIO, 0, "fsdp2", None)  # it failed, and is not tried again
        again = plays.Plays(self.path, "build")
        self.assertEqual(again.found, known.found)
        self.assertIn((SCENARIO, 0, "fsdp2"), again)
        self.assertEqual([set(one) for one in again.rounds(SCENARIO)], 3 * [{"undisturbed", "kept", "rule"}])

    def test_a_line_that_was_cut_off_is_played_again(self):
        self.filled()
        whole = self.path.read_bytes()
        self.path.write_bytes(whole[:-30])
        known = plays.Plays(self.path, "build")
        self.assertNotIn((SCENARIO, 2, "rule"), known)
        known.add(SCENARIO, 2, "rule", result("rule", 13.2, SWITCH))
        self.assertEqual(self.path.read_bytes(), whole)

    def test_builds_are_not_mixed(self):
        self.filled()
        with self.assertRaisesRegex(lab.training.Failed, "another build"):
            plays.Plays(self.path, "another")
        self.assertEqual(len(plays.Plays(self.path, None).found), 9)  # who only reads asks for none

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


class Ways(unittest.TestCase):
    def test_of_scenarios(self):
        self.assertNotIn("undisturbed", ways.usual(lab.read("decide_heavy_stage")))  # nothing happens there that could be left out
        self.assertEqual(ways.usual(lab.read("decide_quiet")), ["rule", "watched", "kept"])
        with self.assertRaisesRegex(lab.training.Failed, "copies alone"):
            ways.check(["rule", "fsdp2"], lab.read("decide_heavy_stage"))
        with self.assertRaisesRegex(lab.training.Failed, "name rule and kept"):
            ways.check(["best"], lab.read(SCENARIO))
        words = ways.scenario_of(lab.read(SCENARIO), "learned", None, None).runs[0].words
        self.assertEqual(words[-2:], ["--policy", "learned"])
        self.assertEqual(words.count("--policy"), 1)


if __name__ == "__main__":
    unittest.main()
