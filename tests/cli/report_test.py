#!/usr/bin/env python3
"""Tests the reports about a run: decisions, replay, report. The run folder is written by hand, so that its numbers are known."""
import html.parser
import json
import re
import unittest

from command_line import CommandLineTest, as_json, run

HOSTILE = """</title><script>alert(1)</script><img src="http://x.example/a.png" onerror='x()'>&amp;\u2028"""
VOID = {"meta", "rect", "path"}


class Page(html.parser.HTMLParser):
    """The elements, attributes and text of an HTML page. Fails if an element is not closed in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.attributes, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.attributes += attributes
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert tag in VOID, tag
        self.elements.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> inside {self.open}"
        self.open.pop()

    def handle_data(self, data):
        self.words.append(data)


class ReportTest(CommandLineTest):
    def setUp(self):
        super().setUp()
        self.run_folder = self.folder / "run"
        hashes = []
        for epoch, words in enumerate((["--dp", "2"], ["--pp", "2"])):
            out = self.folder / f"plan{epoch}"
            run("plan", "--model", "gpt2", "--cluster", "cpux2", "--batch", "8", "--seq", "128", "--precision", "fp32", *words, "--export", "optimus", "--out", out)
            text = (out / "plan.json").read_text()
            self.write(f"run/plans/{epoch}.json", text)
            self.write("run/plan.json", text)
            hashes.append(as_json("explain", out / "plan.json")["hash"])
        self.from_hash, self.to_hash = hashes
        self.steps = 40
        self.write("run/metrics.jsonl", "".join(
            json.dumps({"step": s, "loss": 4 - s / 20, "tokens": 1024, "seconds": 0.5, "tokens_per_second": 2048.0 if s <= 20 else 4096.0, "epoch": int(s > 20),
                        **({"validation_loss": 3.25} if s == 20 else {})}) + "\n" for s in range(1, self.steps + 1)))

    def write_decisions(self, *lines, end="\n"):
        self.write("run/decisions.jsonl", "\n".join(json.dumps(line) for line in lines) + end)

    def switch(self, **more):
        return {"step": 20, "kind": "switch", "evidence": "slow link 1: 9.10x since step 10", "cause": "link", "from": self.from_hash, "to": self.to_hash, "epoch": 1,
                "predicted_gain": 0.48, "realised_gain": None, "pause_seconds": 0.036, "prepare_seconds": 0.1, "moved_bytes": 2048, "minimum_bytes": 1024,
                "alternatives": [{"plan": "dp2 zero1", "response": "replan", "predicted_gain": 0.31}], **more}

    def page(self):
        out = self.folder / "page.html"
        run("report", self.run_folder, "--out", out)
        return out.read_text()

    def test_replays_a_run_under_other_policies(self):
        self.write_decisions(self.switch(step=20, evidence="slow link 1: 2.00x since step 11", realised_gain=1.0))
        never, rule, oracle = as_json("replay", self.run_folder, "--policy", "never,rule,oracle")
        self.assertEqual([never["policy"], rule["policy"], oracle["policy"]], ["never", "rule", "oracle"])
        self.assertEqual(never["steps_of_run"], self.steps)
        self.assertEqual(never["switches"], 0)
        # All steps in the folder take 0.5 s on either plan, so the pause of 0.036 s cost the run 0.072 steps.
        self.assertAlmostEqual(never["useful_steps"], self.steps + 0.072, places=6)
        self.assertGreaterEqual(oracle["useful_steps"], rule["useful_steps"])
        shown = run("replay", self.run_folder).stdout
        self.assertIn("the run: 40 steps in", shown)
        self.assertIn("always-best", shown)
        self.assertIn("is not one of never", run("replay", self.run_folder, "--policy", "wise", code=2).stderr)
        self.assertIn("no such folder", run("replay", self.folder / "nowhere", code=1).stderr)

    def test_lists_decisions_with_measured_gains(self):
        self.assertEqual(as_json("decisions", self.run_folder), [])
        self.assertEqual(run("decisions", self.run_folder).stdout, "no decisions\n")
        recover = {"step": 30, "kind": "recover", "evidence": "lost rank 1", "from": self.to_hash, "to": self.from_hash, "epoch": 2, "pause_seconds": 0.2, "moved_bytes": 0, "minimum_bytes": 0}
        self.write_decisions(self.switch(), {"step": 30, "kind": "realised", "epoch": 1, "realised_gain": 0.5}, recover)
        first, second = as_json("decisions", self.run_folder)
        expected = {"step": 20, "kind": "switch", "predicted_gain": 0.48, "realised_gain": 0.5, "pause_seconds": 0.036, "moved_bytes": 2048, "minimum_bytes": 1024, "epoch": 1, "cause": "link"}
        self.assertEqual({key: first[key] for key in expected}, expected)
        self.assertEqual(first["alternatives"], [{"plan": "dp2 zero1", "response": "replan", "predicted_gain": 0.31}])
        self.assertEqual((second["predicted_gain"], second["realised_gain"], second["alternatives"]), (None, None, []))
        lines = run("decisions", self.run_folder).stdout.splitlines()
        self.assertEqual(len(lines), 2)
        self.assertRegex(lines[0], r"^step 20: slow link 1: 9\.10x since step 10; switching .+ → pp2.* \(expected \+48 %, break-even after 1 step\); .*, paused 36\.0 ms, .*; measured \+50 %")
        self.assertIn("step 30: lost rank 1; continuing on", lines[1])

    def test_incomplete_last_line_is_ignored(self):
        self.write_decisions(self.switch(), end='\n{"step": 31, "ki')
        self.assertEqual(len(as_json("decisions", self.run_folder)), 1)

    def test_rejects_folders_that_are_not_runs(self):
        self.expect_error("decisions", self.folder / "nowhere", contains=["nowhere"])
        self.expect_error("report", self.folder, "--out", self.folder / "p.html", contains=["plan.json"])
        self.expect_error("report", self.run_folder, contains=["--out"], code=2)
        self.expect_error("report", self.run_folder, "--out", self.folder / "no" / "p.html", contains=["p.html"])
        self.write("run/decisions.jsonl", '{"step": 1}\n')
        self.expect_error("decisions", self.run_folder, contains=["decisions.jsonl line 1", "kind"])
        self.expect_error("report", self.run_folder, "--out", self.folder / "p.html", contains=["decisions.jsonl line 1"])
        self.write("run/decisions.jsonl", "")
        self.write("run/metrics.jsonl", '{"loss": 1}\n')
        self.expect_error("report", self.run_folder, "--out", self.folder / "p.html", contains=["metrics.jsonl line 1", "step"])

    def test_page_is_well_formed_and_has_the_numbers(self):
        self.write_decisions(self.switch(), {"step": 30, "kind": "realised", "epoch": 1, "realised_gain": 0.5})
        text = self.page()
        page = Page(text)
        shown = " ".join(page.words)
        for words in ("slow link 1: 9.10x since step 10", "+48 %", "+50 %", "36.0 ms", "2.00 KiB", "2.05 K", "4.10 K", "1 to 20", "21 to 40", "dp2 zero1 +31 %", "pp2"):
            self.assertIn(words, shown)
        self.assertEqual(page.elements.count("svg"), 2)
        self.assertNotIn("Timeline of one step", shown)
        # The loss falls along a line: the first step is at the top left corner of the plot, the last at the bottom right.
        path = re.search(r'class="line" d="M([\d.]+) ([\d.]+)[^"]*L([\d.]+) ([\d.]+)"', text).groups()
        self.assertEqual(tuple(map(float, path)), (64.0, 30.0, 948.0, 222.0))
        as_printed = as_json("report", self.run_folder, "--out", self.folder / "again.html")
        self.assertEqual((as_printed["steps"], as_printed["decisions"], as_printed["profiled_ranks"]), (40, 1, 0))

    def test_page_has_no_external_resources(self):
        self.write_decisions(self.switch())
        text = self.page()
        page = Page(text)
        self.assertFalse({"script", "link", "img", "iframe", "object", "image", "use", "base", "form"} & set(page.elements))
        self.assertFalse({name for name, _ in page.attributes if name in ("src", "href", "srcset", "action") or name.startswith("on") or name.startswith("xlink")})
        for word in ("url(", "@import", "http:", "https:", "//"):
            self.assertNotIn(word, text)

    def test_hostile_text_is_escaped(self):
        self.write_decisions(self.switch(evidence=HOSTILE, kind=HOSTILE, **{"from": HOSTILE}, alternatives=[{"plan": HOSTILE, "response": HOSTILE}]), self.switch(evidence="\x1b[2J\r\n\x00" + HOSTILE))
        instruction = {"lane": "compute", "name": HOSTILE, "kind": HOSTILE, "start": 0.1, "end": 0.2}
        sizes = dict.fromkeys(("weights", "gradients", "optimizer", "activations", "buffers", "total"), 1)
        self.write("run/profile/rank-0.json", json.dumps({"rank": 0, "host": HOSTILE, "device": HOSTILE, "pipeline": 0, "stage": 0, "memory_bytes": sizes, "resident_bytes": 1,
                                                          "steps": [{"step": 4, "start": 0, "end": 0.5}], "instructions": [instruction]}))
        page = Page(self.page())
        self.assertIn("Timeline of one step", " ".join(page.words))
        self.assertFalse({"script", "img"} & set(page.elements))
        self.assertTrue(any("<script>alert(1)</script>" in word for word in page.words))
        shown = run("decisions", self.run_folder).stdout
        self.assertEqual(len(shown.splitlines()), 2 + shown.count("\u2028"))  # only Python treats it as a line end
        self.assertNotIn("\x1b", shown)

    def test_page_of_a_run_without_steps(self):
        (self.run_folder / "metrics.jsonl").unlink()
        self.assertIn("nothing yet", " ".join(Page(self.page()).words))

    def test_unknown_policy_lists_all_policies(self):
        trace = self.write("t.csv", "0,add,n0\n5,add,n1\n60,remove,n1\n")
        words = ("--model", "gpt2", "--cluster", "cpux2", "--batch", "8", "--seq", "128")
        self.expect_error("simulate", "--failures", trace, "--policy", "treshold", *words, code=2, contains=["treshold", "never", "always-best", "rule", "oobleck", "ours", "did you mean"])


if __name__ == "__main__":
    unittest.main()
