"""Runs a scenario: creates the cluster, starts a rank for each device with the variables that launchers set, triggers the events, and
compares the outcome with what is expected. Logs every action. The cluster is in cluster.py, the format of scenarios in scenario.py."""
import json
import math
import os
import pathlib
import random
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import time

import cluster

PORT = 29400
PLANS = pathlib.Path(__file__).resolve().parent / "plans"  # plans of scenarios: plans/NAME.json
MAX_LINK_SECONDS = 5  # allowed duration of measuring links of any speed
PLAN_FLAGS = ("--model", "--layers", "--hidden", "--heads", "--seq", "--batch", "--precision")  # training flags on which a plan depends
BYTE_TOKENS = 257  # vocabulary of the byte tokenizer
CLOSE = 1e-9  # fp64, another summation order: as in tests/engine/parallel_test.cpp


class Failed(Exception):
    """Something is not as expected; the message gives the difference."""


def binary():
    return os.environ.get("OPTIMUS") or str(pathlib.Path(__file__).resolve().parents[2] / "build" / "test" / "optimus")


def read_rows(run_folder):
    """Returns the steps of a run, complete lines only."""
    try:
        lines = (run_folder / "metrics.jsonl").read_text().split("\n")[:-1]
    except OSError:
        return []
    return [json.loads(line) for line in lines if line]


def data_of(lab, one):
    return lab.folder / ("text.txt" if one.documents == "one" else "documents.jsonl")


def write_data(path, one):
    """Writes the training data. documents = "one": one document of many lines. "uneven": 600 documents with log-normal lengths (median a
    quarter of a sequence, sigma 1, at most one sequence)."""
    lines = [f"line {i} of {i * 7 % 31}, and so on\n" for i in range(900)]
    if one.documents == "one":
        path.write_text("".join(lines))
        return
    length = int(one.training[one.training.index("--seq") + 1])
    text, generator = "".join(lines) * 40, random.Random(7)
    sizes = [max(2, min(length, int(length / 4 * math.exp(generator.gauss(0, 1))))) for _ in range(600)]
    starts = [generator.randrange(len(text) - length) for _ in sizes]
    path.write_text("".join(json.dumps({"text": text[start:start + size]}) + "\n" for start, size in zip(starts, sizes)))


class Ranks:
    """The processes of one run of a scenario."""

    def __init__(self, lab, scenario, run, number):
        self.lab, self.scenario, self.run = lab, scenario, run
        self.folder = lab.shared / "run"
        self.logs = lab.folder / "logs" / f"run-{number}"
        self.logs.mkdir(parents=True)
        self.places = [(name, device) for name in run.hosts for device in range(scenario.hosts[name].devices)]
        self.disturbed = set()  # ranks of which nothing is expected any more
        self.leaving = set()  # ranks that received a preemption notice
        self.start_time = time.monotonic()
        token, args = secrets.token_hex(16), self._args()
        self.processes = [self._start(rank, token, args) for rank in range(len(self.places))]

    def _args(self):
        run, data = self.run, ["--data", str(data_of(self.lab, self.scenario))]
        script = ["--switch-at", ",".join(f"{step}:{self._plan(devices, args)}" for step, devices, args in run.switches)] if run.switches else []
        own = [str(PLANS.parent / word) if word.startswith("plans/") else word for word in run.args]
        if run.kind == "train":
            # The history of this machine must not learn from emulated machines, or be used to plan for them.
            return ["train", "--history", "none", *self.scenario.training, *own, *data, "--run", str(self.folder), *script]
        if run.kind == "resume":
            return ["train", "--resume", str(self.folder), *run.args, *script]
        return ["profile", "--links", "--json", *run.args, "--out", str(self.lab.shared / "cluster.json")]

    def _plan(self, devices, args):
        """Returns a plan by the planner for the scenario's training."""
        folder = self.lab.folder / "plans" / "_".join([str(devices), *args]).replace("/", "_")
        if not (folder / "plan.json").exists():
            given = self.scenario.training
            shape = [word for flag, value in zip(given, given[1:]) if flag in PLAN_FLAGS for word in (flag, value)]
            result = subprocess.run([binary(), "plan", *shape, "--vocab", str(BYTE_TOKENS), "--cluster", f"cpux{devices}", *args, "--export", "optimus", "--out", str(folder)],
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
            if result.returncode != 0:
                raise Failed(f"planning for {devices} devices with {' '.join(args)} failed: {result.stderr.strip()}")
        return folder / "plan.json"

    def _start(self, rank, token, args):
        name, device = self.places[rank]
        variables = {"RANK": rank, "WORLD_SIZE": len(self.places), "LOCAL_RANK": device, "LOCAL_WORLD_SIZE": self.scenario.hosts[name].devices,
                     "MASTER_ADDR": self.lab.network.address(self.run.hosts[0]), "MASTER_PORT": PORT, "OPTIMUS_TOKEN": token, "OMP_NUM_THREADS": 1}
        return self._process(rank, args, variables)

    def _process(self, number, args, variables):
        name, device = self.places[number]
        with open(self.logs / f"rank-{number}.out", "w") as out, open(self.logs / f"rank-{number}.err", "w") as errors:
            return self.lab.start(name, device, [binary(), *args], {key: str(value) for key, value in variables.items()},
                                  stdin=subprocess.DEVNULL, stdout=out, stderr=errors)

    def join(self, name):
        """Starts one more process, on this host."""
        self.places.append((name, sum(device_name[0] == name for device_name in self.places)))
        self.processes.append(self._process(len(self.processes), ["join", str(self.folder)], {"OMP_NUM_THREADS": 1}))

    def ranks_on(self, target):
        """Returns the ranks on a target such as "host2" or "host2/1"."""
        name, _, device = target.partition("/")
        return [rank for rank, device_name in enumerate(self.places) if device_name[0] == name and device in ("", str(device_name[1]))]

    def signal(self, target, number):
        for rank in self.ranks_on(target):
            self.disturbed.add(rank)
            if self.processes[rank].poll() is None:
                self.processes[rank].send_signal(number)

    def notice(self, target):
        """Sends a preemption notice, as a launcher does: the ranks must leave on their own."""
        for rank in self.ranks_on(target):
            self.leaving.add(rank)
            if self.processes[rank].poll() is None:
                self.processes[rank].send_signal(signal.SIGTERM)

    def ended_as_expected(self, rank):
        """Exit code 130 is allowed for a rank with a preemption notice: if the others have already continued without it, it has nothing
        to pass on."""
        return self.processes[rank].returncode in ((0, 130) if rank in self.leaving else (self.run.expected.exit,))

    def undisturbed_ranks(self):
        return [rank for rank in range(len(self.places)) if rank not in self.disturbed]

    def last_line(self, rank):
        lines = (self.logs / f"rank-{rank}.err").read_text(errors="replace").replace("\r", "\n").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def are_listed(self):
        """Whether all ranks have joined; the first step has not completed yet."""
        try:
            return len(json.loads((self.folder / "workers.json").read_text())["workers"]) == len(self.places)
        except (OSError, ValueError):
            return False

    def is_saving(self):
        """Whether a checkpoint is being written."""
        return any((self.folder / "checkpoints").glob("*.tmp-*"))

    def has_ended(self):
        return all(self.processes[rank].poll() is not None for rank in self.undisturbed_ranks())

    def kill_disturbed(self):
        """Kills stopped ranks at the end, as their launcher would."""
        for rank in self.disturbed:
            self.processes[rank].kill()
            self.processes[rank].wait()


class ScenarioRunner:
    """Runs one scenario on one cluster. say: receives log lines; alone: cached results of one device by training arguments."""
    processes = Ranks  # the class of a run's processes; subclasses start them differently

    def __init__(self, scenario, lab, log, baselines):
        self.scenario, self.lab, self.log, self.baselines = scenario, lab, log, baselines
        self.cuts = set()

    def run_scenario(self):
        write_data(data_of(self.lab, self.scenario), self.scenario)
        for name, host in self.scenario.hosts.items():
            if host.bits_per_second:
                self.lab.network.shape(name, host.bits_per_second, self.scenario.latency)
        if self.scenario.disk:
            self.lab.small_disk(self.scenario.disk)
        for number, run in enumerate(self.scenario.runs, 1):
            self._execute_run(number, run)

    def _execute_run(self, number, run):
        ranks = self.processes(self.lab, self.scenario, run, number)
        self.log(f"run {number}: {run.kind} {' '.join(run.args)}  ({len(ranks.places)} ranks on {', '.join(run.hosts)})")
        try:
            first_event_step = self._run_events(ranks)
            self._wait_for_end(ranks)
            ranks.kill_disturbed()
            self._check(ranks, first_event_step)
        except Failed as failed:
            raise Failed(f"run {number}: {failed}{self._last_lines(ranks)}") from failed

    def _last_lines(self, ranks):
        lines = [f"\n    rank {rank} on {device_name[0]}/{device_name[1]} ({_state_text(ranks.processes[rank].poll())}): {ranks.last_line(rank)}" for rank, device_name in enumerate(ranks.places)]
        return "".join(lines)

    def _note(self, ranks, text):
        self.log(f"  {time.monotonic() - ranks.start_time:6.2f} s  {text}")

    def _run_events(self, ranks):
        """Triggers all events, in order. Returns the number of completed steps at the first event."""
        step = None
        before = ranks.start_time
        for event in ranks.run.events:
            self._wait_for(ranks, event, before)
            time.sleep(event.delay)
            result = len(read_rows(ranks.folder))
            step = result if step is None else step
            self._note(ranks, f"step {result}: {event.text()}")
            self._apply(ranks, event)
            before = time.monotonic()
        return step

    def _wait_for(self, ranks, event, before):
        end = time.monotonic() + 120
        origin = before if event.when == "after" else ranks.start_time
        while time.monotonic() < end:
            if event.when in ("at_second", "after") and time.monotonic() - origin >= event.moment:
                return
            if event.when == "at_start" and ranks.are_listed():
                return
            if event.when in ("at_step", "at_save") and len(read_rows(ranks.folder)) >= event.moment and (event.when == "at_step" or ranks.is_saving()):
                return
            if ranks.has_ended() and event.when in ("at_start", "at_step", "at_save"):
                raise Failed(f"ended before '{event.text()}' {event.when.replace('_', ' ')} {event.moment:g}")
            time.sleep(0.002)
        raise Failed(f"'{event.text()}' {event.when.replace('_', ' ')} {event.moment:g} did not happen within 120 s")

    def _apply(self, ranks, event):
        network, what, target = self.lab.network, event.what, event.target
        if what == "kill":
            ranks.signal(target, signal.SIGKILL)
        elif what == "stop":
            ranks.signal(target, signal.SIGSTOP)
        elif what == "continue":
            ranks.signal(target, signal.SIGCONT)
            ranks.disturbed -= set(ranks.ranks_on(target))
        elif what == "notice":
            ranks.notice(target)
        elif what == "join":
            ranks.join(target)
        elif what == "cut":
            for pair in self._pairs(target):
                network.cut(*pair)
                self.cuts.add(pair)
        elif what == "heal":
            self._heal(target)
        elif what == "slow":
            network.shape(target, event.to, self.scenario.latency)
        elif what == "pace":
            for rank in ranks.ranks_on(target):
                self.lab.set_pace(*ranks.places[rank], event.to)
        elif what == "fill_disk":
            self.lab.fill_disk()
        elif what == "free_disk":
            self.lab.free_disk()
        else:
            raise AssertionError(what)

    def _pairs(self, target):
        """Returns the host pairs of "host1-host3", or all pairs of "host3"."""
        names = target.split("-")
        if len(names) == 2:
            return [tuple(sorted(names))]
        return [tuple(sorted((target, other))) for other in self.scenario.hosts if other != target]

    def _heal(self, target):
        """Restores cut links, and the speeds that the scenario defines."""
        for pair in self._pairs(target):
            if pair in self.cuts:
                self.lab.network.reconnect(*pair)
                self.cuts.remove(pair)
        for name in target.split("-"):
            if self.scenario.hosts[name].bits_per_second:
                self.lab.network.shape(name, self.scenario.hosts[name].bits_per_second, self.scenario.latency)

    def _wait_for_end(self, ranks):
        within = ranks.run.expected.within
        end = time.monotonic() + within
        while not ranks.has_ended():
            if time.monotonic() > end:
                late = [rank for rank in ranks.undisturbed_ranks() if ranks.processes[rank].poll() is None]
                raise Failed(f"ranks {late} did not end within {within:g} s")
            time.sleep(0.01)
        self._note(ranks, f"all {'other ' if ranks.disturbed else ''}ranks have ended, at step {len(read_rows(ranks.folder))}")

    def _check(self, ranks, first_event_step):
        expected = ranks.run.expected
        undisturbed = ranks.undisturbed_ranks()
        if not all(ranks.ended_as_expected(rank) for rank in undisturbed):
            raise Failed(f"expected exit {expected.exit} of ranks {undisturbed}, got {[ranks.processes[rank].returncode for rank in undisturbed]}")
        lines = [ranks.last_line(rank) for rank in undisturbed]
        for text in expected.last_line:
            if not any(text in line for line in lines):
                raise Failed(f"no last line contains {text!r}")
        everything = [(ranks.logs / f"rank-{rank}.err").read_text(errors="replace") for rank in undisturbed]
        for text in expected.prints:
            if not any(text in one for one in everything):
                raise Failed(f"no rank prints {text!r}")
        lost = [int(count) for one in everything for count in re.findall(r"(\d+) steps? lost", one)]
        if expected.most_lost >= 0 and max(lost, default=0) > expected.most_lost:
            raise Failed(f"{max(lost)} steps were lost at once, at most {expected.most_lost} are allowed")
        if expected.times_lost >= 0 and len(lost) != expected.times_lost:
            raise Failed(f"steps were lost {len(lost)} times, not {expected.times_lost}")
        if expected.exit != 0 and lines:
            self.log(f"    {next((line for line in lines if line), 'no line')}")
        if expected.losses:
            self._check_losses(ranks)
        if ranks.run.switches and expected.exit == 0:
            self._check_switches(ranks)
        if expected.slower:
            self._check_slower(ranks, first_event_step)
        if expected.links:
            self._check_links(ranks, expected.links)
        left = self.lab.leftovers()
        in_memory = [one for one in left if one.startswith("shared memory ")]
        if expected.keeps_memory and not in_memory:
            raise Failed("no host has state of the run in its memory")
        if expected.keeps_memory:
            left = [one for one in left if one not in in_memory]
        if left:
            raise Failed("left behind: " + ", ".join(left))

    def _check_losses(self, ranks):
        rows, baselines = read_rows(ranks.folder), self._one_device()
        if [row["step"] for row in rows] != [row["step"] for row in baselines]:
            raise Failed(f"steps {[row['step'] for row in rows]}, expected 1 to {len(baselines)}, each once")
        differences = {key: max(abs(row[key] / one[key] - 1) for row, one in zip(rows, baselines)) for key in ("loss", "grad_norm")}
        if not all(part <= CLOSE for part in differences.values()):
            raise Failed(f"relative differences of losses and gradient norms from one device are up to {differences}, more than {CLOSE:g}")
        self._note(ranks, f"{len(rows)} losses equal those of one device within {differences['loss']:.1e}, gradient norms within {differences['grad_norm']:.1e}")

    def _check_switches(self, ranks):
        decisions = [json.loads(line) for line in (ranks.folder / "decisions.jsonl").read_text().splitlines()]
        steps, expected = [one["step"] for one in decisions], [step for step, _, _ in ranks.run.switches]
        if steps != expected:
            raise Failed(f"the plan changed after steps {steps}, not {expected}")
        more = [one for one in decisions if one["moved_bytes"] != one["minimum_bytes"]]
        if more:
            raise Failed(f"more bytes were moved than necessary: {more}")
        moved, paused = sum(one["moved_bytes"] for one in decisions), [one["pause_seconds"] for one in decisions]
        self._note(ranks, f"{len(decisions)} plan changes moved {moved / 1e6:.2f} MB, the minimum, and paused {min(paused):.2f} to {max(paused):.2f} s")

    def _one_device(self):
        """Runs the same training in one process, outside of all hosts."""
        args = tuple(self.scenario.training)
        if args not in self.baselines:
            folder = self.lab.folder / "alone"
            result = subprocess.run([binary(), "train", "--history", "none", *self.scenario.training, "--devices", "1", "--data", str(data_of(self.lab, self.scenario)), "--run", str(folder)],
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
            if result.returncode != 0:
                raise Failed(f"one device: {result.stderr}")
            self.baselines[args] = read_rows(folder)
        return self.baselines[args]

    def _check_slower(self, ranks, step):
        # The first steps are slower, and the step of the event is partly before and partly after it.
        seconds = [row["seconds"] for row in read_rows(ranks.folder)]
        before, after = seconds[2:step - 1], seconds[step + 1:]
        if len(before) < 3 or len(after) < 3:
            raise Failed(f"too few steps to compare: {len(before)} before the event, {len(after)} after it")
        ratio = statistics.median(after) / statistics.median(before)
        self._note(ranks, f"steps take {ratio:.1f} times as long after the event")
        if ratio < ranks.run.expected.slower:
            raise Failed(f"steps take {ratio:.2f} times as long after the event, expected {ranks.run.expected.slower:g}")

    def _check_links(self, ranks, tolerance):
        seconds = json.loads((ranks.logs / "rank-0.out").read_text())["hardware"]["seconds"]
        self._note(ranks, f"measuring the links took {seconds:.1f} s")
        if seconds > MAX_LINK_SECONDS:
            raise Failed(f"measuring the links took {seconds:.1f} s, more than {MAX_LINK_SECONDS}")
        measured = json.loads((self.lab.shared / "cluster.json").read_text())
        rates = [group["network"]["bytes_per_second"] * 8 for group in measured["groups"] for _ in range(-(-group["devices"] // group["devices_per_node"]))]
        if len(rates) != len(self.scenario.hosts):
            raise Failed(f"{len(rates)} nodes were measured, expected {len(self.scenario.hosts)}")
        for rate, (name, host) in zip(rates, self.scenario.hosts.items()):
            self.log(f"    {name}: measured {rate / 1e6:.0f} Mbit, configured {host.bits_per_second / 1e6:.0f}")
            if abs(rate / host.bits_per_second - 1) > tolerance:
                raise Failed(f"{name}: {rate / 1e6:.0f} Mbit measured, {host.bits_per_second / 1e6:.0f} configured: not within {tolerance:.0%}")


def _state_text(code):
    if code is None:
        return "running"
    return signal.Signals(-code).name if code < 0 else f"exit {code}"


def run_scenario(scenario, log, keep=None, baselines=None):
    """Runs a scenario. Throws Failed and cluster.Unavailable. keep: a folder to which logs and run folders are copied in any case. alone:
    a cache of the results of one device, so that later scenarios with the same arguments do not repeat the run."""
    hosts = {name: (host.devices, host.speed) for name, host in scenario.hosts.items()}
    if "cuda" in scenario.training and not pathlib.Path("/dev/nvidiactl").exists():
        raise cluster.Unavailable("this machine has no GPU")
    if scenario.latency and not cluster.has_netem():
        log("this kernel has no netem: the latency is not emulated")
        scenario.latency = 0
    with cluster.Cluster(hosts) as lab:
        for name, host in scenario.hosts.items():
            link = f"{host.bits_per_second / 1e6:g} Mbit" if host.bits_per_second else "no limit"
            log(f"{name}: {lab.network.address(name)}, {host.devices} devices{'' if host.speed == 1 else f' of {host.speed:g} core each'}, link {link}")
        try:
            ScenarioRunner(scenario, lab, log, {} if baselines is None else baselines).run_scenario()
        finally:
            if keep is not None:
                for part in ("logs", "shared"):
                    if (lab.folder / part).exists():
                        shutil.copytree(lab.folder / part, keep / part, ignore=shutil.ignore_patterns(".filler"), dirs_exist_ok=True)
