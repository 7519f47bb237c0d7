"""Plays of bench/dynamic: a file that grows by a line of JSON for each, so that a bench of hours goes on where it was stopped."""
import dataclasses
import datetime
import json
import os
import platform

import dynamic_lab as lab

HINDSIGHT = -1  # the round in which the best static plan is looked for
START = "the start plan"
LOOKED = "all"  # stands there when no more will be looked at, with the names where not all were to be


def looked(among=None):
    return LOOKED + (f" of {', '.join(among)}" if among else "")


class Plays:
    """By (scenario, round, way); a way that failed has none of its seconds. Who plays names the build's mark and, by names, those of the scenarios that it plays; who only reads names none."""

    def __init__(self, path, program=None, marks=None):
        self.path, self.program, self.marks = path, program, marks or {}
        self.found, self.measured = {}, {}
        if path and path.exists():
            self._read()

    def _read(self):
        text = self.path.read_text()
        whole = text[:text.rfind("\n") + 1]
        if whole != text and self.program:  # the last line was cut off; a bench that is still playing is not disturbed by who reads
            os.truncate(self.path, len(whole.encode()))
        for line in map(json.loads, whole.splitlines()):
            if self.program:
                self._check(line)
            result = line.pop("result")
            self._keep(line["scenario"], line["round"], line["way"], lab.Result(**result) if result else None, line["measured"])

    def _check(self, line):
        name, mark = line["scenario"], line.get("scenario_mark")
        if mark is None:
            raise lab.training.Failed(f"{self.path} is older than the marks of scenarios: it can be read, but not gone on with; name another file")
        if line["program"] != self.program:
            raise lab.training.Failed(f"{self.path} has plays of another build ({line['program']}, this one is {self.program}); name another file")
        if mark != self.marks.get(name, mark):
            raise lab.training.Failed(f"{self.path} has plays of another {name} ({mark}, its files are {self.marks[name]} now); name another file")

    def _keep(self, scenario, number, way, result, measured):
        self.found[scenario, number, way] = result
        self.measured[scenario] = measured

    def __contains__(self, key):
        return key in self.found

    def __getitem__(self, key):
        return self.found[key]

    def add(self, scenario, number, way, result):
        today = datetime.date.today().isoformat()
        self._keep(scenario, number, way, result, today)
        if self.path:
            line = {"scenario": scenario, "round": number, "way": way, "measured": today, "machine": platform.machine(), "program": self.program, "scenario_mark": self.marks[scenario],
                    "result": dataclasses.asdict(result) if result else None}
            with open(self.path, "a") as file:
                file.write(json.dumps(line) + "\n")

    def scenarios(self):
        return list(self.measured)

    def rounds(self, scenario):
        """[{way: result}], in order."""
        numbers = sorted({number for name, number, _ in self.found if name == scenario and number >= 0})
        return [{way: result for (name, at, way), result in self.found.items() if name == scenario and at == number and result} for number in numbers]

    def best(self, scenario):
        """(seconds, name) of the quickest static plan that was measured, the start plan among them; none where none was."""
        tried = [(result.seconds, way) for (name, number, way), result in self.found.items() if name == scenario and number == HINDSIGHT and result]
        start = self.found.get((scenario, 0, "kept"))
        return min(tried + ([(start.seconds, START)] if start else []), default=None)

    def has_looked(self, scenario):
        """Whether that is the best of all, or of those that were to be looked at."""
        return any(name == scenario and number == HINDSIGHT and way.startswith(LOOKED) for name, number, way in self.found)
