#!/usr/bin/env python3
"""Tests bench/dynamic: its results file, tables, search for the best static plan, and variants. Runs no scenario."""
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
import dynamic_results as results_file  # noqa: E402
import dynamic_tables as tables  # noqa: E402
import dynamic_variants as variants  # noqa: E402

SCENARIO = "decide_slow_device"
DIGESTS = {SCENARIO: "unchanged"}
SWITCH = [{"kind": "switch", "epoch": 1, "predicted_gain": 0.5}, {"kind": "realised", "epoch": 1, "realised_gain": 0.6}]


def load_bench():
    """Loads the script bench/dynamic, which has no suffix."""
    spec = importlib.util.spec_from_loader("dynamic", importlib.machinery.SourceFileLoader("dynamic", str(BENCH / "dynamic")))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bench = load_bench()


def result(variant, seconds, decisions=()):
    return lab.Result(variant, seconds, 2, [2.0, 1.0], [seconds / 2, seconds / 2], list(decisions), ["{}"], [])


class Results(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "plays.jsonl"

    def example_results(self):
        results = results_file.Results(self.path, "build", DIGESTS)
        for number in range(3):
            for variant, seconds, decisions in (("undisturbed", 10, ()), ("static", 20, ()), ("rule", 13 + number / 10, SWITCH)):
                results.add(SCENARIO, number, variant, result(variant, seconds, decisions))
        return results

    def test_results_are_read_back(self):
        results = self.example_results()
        results.add(SCENARIO, 0, "fsdp2", None)  # it failed, and is not repeated
        resumed = results_file.Results(self.path, "build", DIGESTS)
        self.assertEqual(resumed.found, results.found)
        self.assertIn((SCENARIO, 0, "fsdp2"), resumed)
        self.assertEqual([set(spec) for spec in resumed.rounds(SCENARIO)], 3 * [{"undisturbed", "static", "rule"}])

    def test_incomplete_line_is_measured_again(self):
        self.example_results()
        complete = self.path.read_bytes()
        self.path.write_bytes(complete[:-30])
        results = results_file.Results(self.path, "build", DIGESTS)
        self.assertNotIn((SCENARIO, 2, "rule"), results)
        results.add(SCENARIO, 2, "rule", result("rule", 13.2, SWITCH))
        self.assertEqual(self.path.read_bytes(), complete)

    def test_reading_does_not_change_the_file(self):
        self.example_results()
        cut = self.path.read_bytes()[:-30]  # as if a bench were still writing
        self.path.write_bytes(cut)
        self.assertEqual(len(results_file.Results(self.path).found), 8)
        self.assertEqual(self.path.read_bytes(), cut)

    def test_results_of_different_builds_are_not_mixed(self):
        self.example_results()
        with self.assertRaisesRegex(lab.training.Failed, "another build"):
            results_file.Results(self.path, "another", DIGESTS)
        self.assertEqual(len(results_file.Results(self.path).found), 9)  # reading needs no digest of the build

    def test_results_of_changed_scenarios_are_not_mixed(self):
        self.example_results()
        with self.assertRaisesRegex(lab.training.Failed, f"another version of {SCENARIO}"):
            results_file.Results(self.path, "build", {SCENARIO: "changed"})
        # the file has no results of that scenario
        self.assertEqual(len(results_file.Results(self.path, "build", {"decide_quiet": "changed"}).found), 9)
        self.assertEqual(len(results_file.Results(self.path).found), 9)

    def test_files_without_scenario_digests_can_only_be_read(self):
        self.example_results()
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        for line in lines:
            del line["scenario_digest"]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with self.assertRaisesRegex(lab.training.Failed, "has no scenario digests"):
            results_file.Results(self.path, "build", DIGESTS)
        self.assertIn("slow device", tables.all_tables(results_file.Results(self.path)))

    def test_start_plan_may_be_the_best_static_plan(self):
        results = self.example_results()
        self.assertFalse(results.has_searched(SCENARIO))
        results.add(SCENARIO, results_file.HINDSIGHT, "slower", result("slower", 25))
        results.add(SCENARIO, results_file.HINDSIGHT, "abandoned", None)
        self.assertEqual(results.best(SCENARIO), (20, results_file.START))
        results.add(SCENARIO, results_file.HINDSIGHT, "faster", result("faster", 15))
        self.assertEqual(results.best(SCENARIO), (15, "faster"))
        results.add(SCENARIO, results_file.HINDSIGHT, results_file.SEARCHED, None)
        self.assertTrue(results.has_searched(SCENARIO))

    def test_prints_tables(self):
        results = self.example_results()
        self.assertAlmostEqual(figures.recovered(results.rounds(SCENARIO))[0], 0.7)
        row = tables.row(results, SCENARIO)
        for part in ("| slow device | 3 | 10.0 s | 20.0 s |", "| 13.1 s |", "+69.0 % (+68.0 % to +70.0 %)", "+34.5 % (+34.0 % to +35.0 %)", "| +50 %, +60 % |"):
            self.assertIn(part, row)
        self.assertEqual(row.count("|"), tables.HEADER.splitlines()[0].count("|"))
        short = json.loads(json.dumps(tables.short(results)))
        self.assertEqual(short[0]["seconds"], {"static": [20, 20, 20], "rule": [13, 13.1, 13.2], "undisturbed": [10, 10, 10]})
        self.assertEqual(short[0]["rule_gains"], 3 * [[0.5, 0.6]])

    def test_prints_tables_of_interrupted_rounds(self):
        results = self.example_results()
        results.add(SCENARIO, 3, "rule", result("rule", 13))  # neither static nor undisturbed
        results.add(SCENARIO, 4, "rule", result("rule", 13))
        results.add(SCENARIO, 4, "static", result("static", 20))
        self.assertEqual(len(figures.recovered(results.rounds(SCENARIO))), 3)
        self.assertIn("| slow device | 5 | 10.0 s (3) | 20.0 s (4) |", tables.row(results, SCENARIO))

    def test_finds_the_best_plan_with_fewer_candidates(self):
        results = self.example_results()
        results.add(SCENARIO, results_file.HINDSIGHT, "plan-1", result("plan-1", 15))
        results.add(SCENARIO, results_file.HINDSIGHT, results_file.SEARCHED, None)
        options = argparse.Namespace(variants=["rule", "static", "best"], candidates=1, static_plans=None)
        for names, expected in ((("plan-0", "plan-1"), "of plan-1"), (("plan-0",), None)):
            spec = bench.Bench(lab.read(SCENARIO), options, results, None)
            with mock.patch.object(variants, "candidates", lambda *_: [(name, f"of {name}") for name in names]):
                if expected:
                    self.assertEqual(spec._scenario("best"), expected)
                else:
                    with self.assertRaisesRegex(lab.training.Failed, "plan-1, its best static plan, was not found again"):
                        spec._scenario("best")


    def search_best(self, results, static_plans, found):
        """Searches the best plan among these candidates, of which those in `found` can be run."""
        def run_scenario(_, variant, most=math.inf):
            if variant not in found:
                raise lab.training.Failed(f"{variant} fails")
            return result(variant, found[variant])
        options = argparse.Namespace(variants=["rule", "best"], candidates=9, static_plans=static_plans)
        with mock.patch.object(variants, "candidates", lambda *_: [(name, name) for name in ("plan-0", "plan-1", "plan-2")]), mock.patch.object(bench, "run_scenario", run_scenario):
            bench.Bench(lab.read(SCENARIO), options, results, None)._search_best()

    def test_searches_the_best_plan_without_the_start_plan(self):
        results = results_file.Results(self.path, "build", DIGESTS)
        results.add(SCENARIO, 0, "rule", result("rule", 13))
        with self.assertRaisesRegex(lab.training.Failed, "no static plan could be run"):
            self.search_best(results, ["plan-2"], {})
        self.search_best(results, ["plan-0", "plan-1"], {"plan-0": 15, "plan-1": 14})
        self.assertEqual(results.best(SCENARIO), (14, "plan-1"))
        self.search_best(results, ["plan-0", "plan-1"], {})  # nothing is measured again
        with self.assertRaisesRegex(lab.training.Failed, "among other candidates"):
            self.search_best(results, ["plan-0"], {})


class LossesTest(unittest.TestCase):
    def test_different_losses_fail(self):
        other = result("rule", 1)
        other.losses = [2.0, 1.1]
        bench.check_losses({"static": result("static", 1), "rule": result("rule", 1), "fsdp2": other}, SCENARIO)
        with self.assertRaisesRegex(lab.training.Failed, "losses of rule differ"):
            bench.check_losses({"static": result("static", 1), "rule": other}, SCENARIO)

    def test_accepts_missing_variants(self):
        bench.check_losses({"fsdp2": result("fsdp2", 1)}, SCENARIO)
        bench.check_losses({}, SCENARIO)


class DigestsTest(unittest.TestCase):
    def test_digest_changes_with_the_scenario_and_its_plans(self):
        with tempfile.TemporaryDirectory() as folder:
            copied = pathlib.Path(folder)
            shutil.copytree(lab.SCENARIOS, copied / "scenarios")
            shutil.copytree(lab.training.PLANS, copied / "plans")
            with mock.patch.object(lab, "SCENARIOS", copied / "scenarios"), mock.patch.object(lab.training, "PLANS", copied / "plans"):
                spec = lab.read("decide_quiet")
                known_plans = [lab.digest(lab.files_of(spec))]
                for path in (copied / "plans" / "dp4.json", copied / "scenarios" / "decide_quiet.toml"):
                    path.write_text(path.read_text() + "\n")
                    known_plans.append(lab.digest(lab.files_of(spec)))
                (copied / "plans" / "even_pp4.json").write_text("{}")  # a plan of other scenarios
                self.assertEqual(lab.digest(lab.files_of(spec)), known_plans[-1])
                self.assertEqual(len(set(known_plans)), 3)


class VariantsTest(unittest.TestCase):
    def test_default_variants_of_scenarios(self):
        self.assertNotIn("undisturbed", variants.defaults(lab.read("decide_heavy_stage")))  # that scenario has no events
        self.assertEqual(variants.defaults(lab.read("decide_quiet")), ["rule", "never", "static"])
        with self.assertRaisesRegex(lab.training.Failed, "consist of replicas"):
            variants.check(["rule", "fsdp2"], lab.read("decide_heavy_stage"))
        for options, missing in ((["best"], "add rule"), (["best", "rule"], "add static")):
            with self.assertRaisesRegex(lab.training.Failed, missing):
                variants.check(options, lab.read(SCENARIO))
        variants.check(["best", "rule"], lab.read(SCENARIO), ["without host2"])
        args = variants.scenario_of(lab.read(SCENARIO), "learned", None, None).runs[0].args
        self.assertEqual(args[-2:], ["--policy", "learned"])
        self.assertEqual(args.count("--policy"), 1)

    def test_selects_static_plans_by_name(self):
        found = [("rule's plan 1", "a"), ("without host2", "b")]
        self.assertEqual(variants.named(iter(found), None), found)
        self.assertEqual(variants.named(iter(found), ["without host2"]), found[1:])
        with self.assertRaisesRegex(lab.training.Failed, "no static plan 'plan-7'; available: rule's plan 1, without host2"):
            variants.named(iter(found), ["without host2", "plan-7"])

    def planned_names(self, folder, late):
        """Returns the plans of a planner that times out for the plans with these names; every plan is different."""

        def run(args, **_):
            out = pathlib.Path(args[args.index("--out") + 1])
            if out.name in late:
                raise subprocess.TimeoutExpired(args, variants.PLANNING_SECONDS)
            out.mkdir(parents=True)
            (out / "plan.json").write_text(out.name)
            return subprocess.CompletedProcess(args, 0)

        with mock.patch.object(variants.subprocess, "run", run):
            return [path.read_text() for path in variants.planned(lab.read(SCENARIO), folder)]

    def test_omits_plans_that_are_not_found_in_time(self):
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            every = self.planned_names(pathlib.Path(first), ())
            self.assertGreater(len(every), 5)
            self.assertEqual(self.planned_names(pathlib.Path(second), ("plan-0", "plan-3")), [name for name in every if name not in ("plan-0", "plan-3")])


if __name__ == "__main__":
    unittest.main()
