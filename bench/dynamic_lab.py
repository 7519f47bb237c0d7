"""One run of a lab scenario for bench/dynamic: the hosts and events of the scenario with other training arguments, and its duration. The
lab itself is in tests/lab."""
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
SAVED = ["--save-every", "20", "--keep-last", "0"]  # a static plan needs a checkpoint to restart from


@dataclasses.dataclass
class Result:
    variant: str
    seconds: float  # from the end of the first step to the end of the last
    steps: int
    losses: list
    step_seconds: list
    decisions: list
    plans: list  # contents of the plan files, one per plan epoch
    starts: list  # starts of FSDP2's workers


def read(name):
    return scenario.read_scenario(SCENARIOS / f"{name}.toml")


def files_of(spec):
    """Returns the files that define a scenario: its own file, and the plans that it names."""
    return [SCENARIOS / f"{spec.name}.toml", *(training.PLANS.parent / word for run in spec.runs for word in run.args if word.startswith("plans/"))]


def digest(paths):
    """Returns a digest of the contents of these files."""
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()[:12]


def args_of(spec):
    """Returns the arguments of the first run, without the policy."""
    args = list(spec.runs[0].args)
    at = args.index("--policy")
    return args[:at] + args[at + 2:]


def steps_of(spec):
    return int(spec.training[spec.training.index("--steps") + 1])


def undisturbed(spec):
    """Returns the same training without any events."""
    spec = copy.deepcopy(spec)
    for run in spec.runs:
        run.events = []
    return spec


def with_args(spec, args, hosts=None):
    """Returns the scenario with other arguments for its run, which is only expected to end. hosts: restricts the run to these hosts."""
    spec = copy.deepcopy(spec)
    run = spec.runs[0]
    run.args, run.expected = list(args), scenario.Expected(within=600)
    if hosts is not None:
        run.hosts = list(hosts)
        run.events = [event for event in run.events if event.what not in ("kill", "join") or event.target.split("/")[0] in run.hosts]
    return spec


def static_scenario(spec, args, hosts=None):
    """Returns the scenario with a static plan and samples in order. If a host is lost, the run ends and is restarted at once on the
    remaining hosts, from its last checkpoint."""
    spec = with_args(spec, [*args, "--static", "--sample-assignment", "in-order"], hosts)
    run = spec.runs[0]
    lost = next((i for i, event in enumerate(run.events) if event.what == "kill"), None)
    if lost is None:
        return spec
    spec.training = spec.training + SAVED
    later = [event for event in run.events[lost + 1:] if event.what != "join"]
    left = [name for name in run.hosts if name != run.events[lost].target]
    run.events = run.events[:lost + 1]
    run.expected = scenario.Expected(exit=1, within=120)
    devices = sum(spec.hosts[name].devices for name in left)
    resumed = scenario.Run("resume", ["--static", "--devices", str(devices)], left, later, scenario.Expected(within=600))
    spec.runs = [run, resumed]
    return spec


class Watch(threading.Thread):
    """Observes when the first and the last step appear in the run's metrics. Ends a run that takes longer than `most` seconds."""

    def __init__(self, network, folder, steps, most):
        super().__init__(daemon=True)
        self.network, self.path, self.steps, self.most = network, folder / "metrics.jsonl", steps, most
        self.first = self.last = None
        self.should_stop = self.has_killed_run = False

    def run(self):
        while self.last is None and not self.should_stop:
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
                self._kill_run()
            time.sleep(0.005)

    def _kill_run(self):
        self.has_killed_run = True
        for name in self.network.names:
            for process in self.network.processes(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_scenario(spec, variant, log, runner=training.ScenarioRunner, most=math.inf):
    """Runs a scenario. Throws training.Failed and cluster.Unavailable."""
    hosts = {name: (host.devices, host.speed) for name, host in spec.hosts.items()}
    with cluster.Cluster(hosts) as lab:
        watch = Watch(lab.network, lab.shared / "run", steps_of(spec), most)
        watch.start()
        try:
            runner(spec, lab, log, {}).run_scenario()
        except (training.Failed, OSError, subprocess.SubprocessError) as error:
            # Includes errors of commands that the lab was running on a host.
            if watch.has_killed_run:
                raise training.Failed(f"{variant}: takes longer than {most:.1f} s") from error
            raise
        finally:
            time.sleep(0.05)
            watch.should_stop = True
            watch.join()
        return result_of(variant, lab.shared / "run", watch)


def result_of(variant, folder, watch):
    rows = training.read_rows(folder)
    if watch.first is None or watch.last is None:
        raise training.Failed(f"{variant}: {len(rows)} of {watch.steps} steps")
    plans = [path.read_text() for path in sorted((folder / "plans").glob("*.json"), key=lambda path: int(path.stem))]
    return Result(variant, watch.last - watch.first, len(rows), [row["loss"] for row in rows], [row["seconds"] for row in rows],
                  read_lines(folder / "decisions.jsonl"), plans, read_lines(folder / "starts.jsonl"))
