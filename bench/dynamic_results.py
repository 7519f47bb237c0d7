"""The results file of bench/dynamic. It grows by one line of JSON per run, so that a bench of hours can be continued after an
interruption."""
import dataclasses
import datetime
import json
import os
import platform

import dynamic_lab as lab

HINDSIGHT = -1  # the round in which the best static plan is searched
START = "the start plan"
SEARCHED = "all"  # marks a completed search, followed by the names of the candidates if they were restricted


def search_mark(static_plans=None):
    return SEARCHED + (f" of {', '.join(static_plans)}" if static_plans else "")


class Results:
    """Results by (scenario, round, variant); None for a variant that failed. A bench that adds results passes the digest of the build and
    those of its scenarios; readers pass neither."""

    def __init__(self, path, program=None, digests=None):
        self.path, self.program, self.digests = path, program, digests or {}
        self.found, self.measured = {}, {}
        if path and path.exists():
            self._read()

    def _read(self):
        text = self.path.read_text()
        complete = text[:text.rfind("\n") + 1]
        if complete != text and self.program:  # the last line is incomplete; readers do not truncate, because a bench may still be writing
            os.truncate(self.path, len(complete.encode()))
        for line in map(json.loads, complete.splitlines()):
            if self.program:
                self._check(line)
            result = line.pop("result")
            self._keep(line["scenario"], line["round"], line["variant"], lab.Result(**result) if result else None, line["measured"])

    def _check(self, line):
        name, digest = line["scenario"], line.get("scenario_digest")
        if digest is None:
            raise lab.training.Failed(f"{self.path} has no scenario digests: it can be read, but not continued; use another file")
        if line["program"] != self.program:
            raise lab.training.Failed(f"{self.path} has results of another build ({line['program']}, this one is {self.program}); use another file")
        if digest != self.digests.get(name, digest):
            raise lab.training.Failed(f"{self.path} has results of another version of {name} ({digest}, its files are {self.digests[name]} now); use another file")

    def _keep(self, scenario, number, variant, result, measured):
        self.found[scenario, number, variant] = result
        self.measured[scenario] = measured

    def __contains__(self, key):
        return key in self.found

    def __getitem__(self, key):
        return self.found[key]

    def add(self, scenario, number, variant, result):
        today = datetime.date.today().isoformat()
        self._keep(scenario, number, variant, result, today)
        if self.path:
            line = {"scenario": scenario, "round": number, "variant": variant, "measured": today, "machine": platform.machine(), "program": self.program, "scenario_digest": self.digests[scenario],
                    "result": dataclasses.asdict(result) if result else None}
            with open(self.path, "a") as file:
                file.write(json.dumps(line) + "\n")

    def scenarios(self):
        return list(self.measured)

    def rounds(self, scenario):
        """Returns [{variant: result}], in the order of rounds."""
        numbers = sorted({number for name, number, _ in self.found if name == scenario and number >= 0})
        return [{variant: result for (name, at, variant), result in self.found.items() if name == scenario and at == number and result} for number in numbers]

    def best(self, scenario):
        """Returns (seconds, name) of the fastest static plan that was measured, including the start plan; None without results."""
        tried = [(result.seconds, variant) for (name, number, variant), result in self.found.items() if name == scenario and number == HINDSIGHT and result]
        start = self.found.get((scenario, 0, "static"))
        return min(tried + ([(start.seconds, START)] if start else []), default=None)

    def has_searched(self, scenario):
        """Whether the search for the best static plan is complete."""
        return any(name == scenario and number == HINDSIGHT and variant.startswith(SEARCHED) for name, number, variant in self.found)
