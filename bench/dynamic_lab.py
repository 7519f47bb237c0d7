"""One run of a lab scenario for bench/dynamic: the scenario's own hosts and time line, other words, and how long it took. The lab itself: tests/lab."""
import contextlib
import copy
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "lab"))
import cluster  # noqa: E402
import scenario  # noqa: E402
import training  # noqa: E402

SCENARIOS = ROOT / "tests" / "lab" / "scenarios"
SAVED = ["--save-every", "20", "--keep-last", "0"]  # a plan that is kept needs a checkpoint to be started again from


@dataclasses.dataclass
class Result:
    way: str
    seconds: float  # from the first step's end to the last one's
    steps: int
    losses: list
    step_seconds: list
    decisions: list
    plans: list  # texts of plan files, one an epoch
    starts: list  # of FSDP2's workers


def read(name):
    return scenario.read_scenario(SCENARIOS / f"{name}.toml")


def files_of(one):
    """What a scenario is made of: its own file, and the plans that it names."""
    return [SCENARIOS / f"{one.name}.toml", *(training.PLANS.parent / word for run in one.runs for word in run.words if word.startswith("plans/"))]


def mark(paths):
    """Of what these files hold: another where one of them is another."""
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()[:12]


def words_of(one):
    """Of its first run, without who decides."""
    words = list(one.runs[0].words)
    at = words.index("--policy")
    return words[:at] + words[at + 2:]


def steps_of(one):
    return int(one.training[one.training.index("--steps") + 1])


def undisturbed(one):
    """The same training where nothing happens."""
    one = copy.deepcopy(one)
    for run in one.runs:
        run.events = []
    return one


def with_words(one, words, hosts=None):
    """The scenario with other words for its run; nothing is expected but an end. hosts: only these take part."""
    one = copy.deepcopy(one)
    run = one.runs[0]
    run.words, run.expected = list(words), scenario.Expected(within=600)
    if hosts is not None:
        run.hosts = list(hosts)
        run.events = [event for event in run.events if event.what not in ("kill", "join") or event.who.split("/")[0] in run.hosts]
    return one


def kept(one, words, hosts=None):
    """A plan that is kept, and samples as they come. Where a host is lost the run ends, and is started again at once on the hosts that are left, from its last checkpoint."""
    one = with_words(one, [*words, "--static", "--sample-assignment", "in-order"], hosts)
    run = one.runs[0]
    lost = next((i for i, event in enumerate(run.events) if event.what == "kill"), None)
    if lost is None:
        return one
    one.training = one.training + SAVED
    later = [event for event in run.events[lost + 1:] if event.what != "join"]
    left = [name for name in run.hosts if name != run.events[lost].who]
    run.events = run.events[:lost + 1]
    run.expected = scenario.Expected(exit=1, within=120)
    devices = sum(one.hosts[name].devices for name in left)
    again = scenario.Run("resume", ["--static", "--devices", str(devices)], left, later, scenario.Expected(within=600))
    one.runs = [run, again]
    return one


class Watch(threading.Thread):
    """When the first and the last step stood in the run's records. A run that takes longer than `most` seconds is ended."""

    def __init__(self, network, folder, steps, most):
        super().__init__(daemon=True)
        self.network, self.path, self.steps, self.most = network, folder / "metrics.jsonl", steps, most
        self.first = self.last = None
        self.is_over = self.has_ended_it = False

    def run(self):
        while self.last is None and not self.is_over:
            try:
                count = self.path.read_bytes().count(b"\n")
            except OSError:
                count = 0
            now = time.monotonic()
            if count >= 1 and self.first is None:
                self.first = now
            if count >= self.steps:
                self.last = now
            elif self.first is not None and now - self.first > self.most:
                self._end_it()
            time.sleep(0.005)

    def _end_it(self):
        self.has_ended_it = True
        for name in self.network.names:
            for process in self.network.processes(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def play(one, way, say, player=training.Player, most=math.inf):
    """Throws training.Failed and cluster.Unavailable."""
    hosts = {name: (host.devices, host.speed) for name, host in one.hosts.items()}
    with cluster.Cluster(hosts) as lab:
        watch = Watch(lab.network, lab.shared / "run", steps_of(one), most)
        watch.start()
        try:
            player(one, lab, say, {}).play()
        except (training.Failed, OSError, subprocess.SubprocessError) as why:  # also what the lab ran in a host just then
            if watch.has_ended_it:
                raise training.Failed(f"{way}: takes longer than {most:.1f} s") from why
            raise
        finally:
            time.sleep(0.05)
            watch.is_over = True
            watch.join()
        return result_of(way, lab.shared / "run", watch)


def result_of(way, folder, watch):
    rows = training.read_rows(folder)
    if watch.first is None or watch.last is None:
        raise training.Failed(f"{way}: {len(rows)} of {watch.steps} steps")
    plans = [path.read_text() for path in sorted((folder / "plans").glob("*.json"), key=lambda path: int(path.stem))]
    return Result(way, watch.last - watch.first, len(rows), [row["loss"] for row in rows], [row["seconds"] for row in rows],
                  read_lines(folder / "decisions.jsonl"), plans, read_lines(folder / "starts.jsonl"))
