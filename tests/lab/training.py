"""Plays a scenario: makes the cluster, starts a rank for each device with the variables that launchers set, lets events happen, and compares
what comes out with what is expected. Says what it does, line by line. The cluster itself: cluster.py; what can be written: scenario.py."""
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
PLANS = pathlib.Path(__file__).resolve().parent / "plans"  # that scenarios name: plans/NAME.json
MOST_SECONDS = 5  # that measuring links may take, whatever they are
PLANNED = ("--model", "--layers", "--hidden", "--heads", "--seq", "--batch", "--precision")  # what of a training a plan depends on
BYTE_TOKENS = 257  # the byte tokenizer's
CLOSE = 1e-9  # fp64, sums in another order: as in tests/engine/parallel_test.cpp


class Failed(Exception):
    """Something is not as expected; the text says what."""


def binary():
    return os.environ.get("OPTIMUS") or str(pathlib.Path(__file__).resolve().parents[2] / "build" / "test" / "optimus")


def read_rows(run_folder):
    """Steps of a run, whole lines only."""
    try:
        lines = (run_folder / "metrics.jsonl").read_text().split("\n")[:-1]
    except OSError:
        return []
    return [json.loads(line) for line in lines if line]


def data_of(lab, one):
    return lab.folder / ("text.txt" if one.documents == "one" else "documents.jsonl")


def write_data(path, one):
    """Lines of text: one document; or as many as there are samples, half of them longer than a quarter of a sequence, log-normal with spread 1, cut at a sequence."""
    lines = [f"line {i} of {i * 7 % 31}, and so on\n" for i in range(900)]
    if one.documents == "one":
        path.write_text("".join(lines))
        return
    length = int(one.training[one.training.index("--seq") + 1])
    text, chance = "".join(lines) * 40, random.Random(7)
    sizes = [max(2, min(length, int(length / 4 * math.exp(chance.gauss(0, 1))))) for _ in range(600)]
    starts = [chance.randrange(len(text) - length) for _ in sizes]
    path.write_text("".join(json.dumps({"text": text[start:start + size]}) + "\n" for start, size in zip(starts, sizes)))


class Ranks:
    """The processes of one run."""

    def __init__(self, lab, scenario, run, number):
        self.lab, self.scenario, self.run = lab, scenario, run
        self.folder = lab.shared / "run"
        self.logs = lab.folder / "logs" / f"run-{number}"
        self.logs.mkdir(parents=True)
        self.places = [(name, device) for name in run.hosts for device in range(scenario.hosts[name].devices)]
        self.disturbed = set()  # those of whom nothing is expected any more
        self.leaving = set()  # those that were told that they will be taken away
        self.began = time.monotonic()
        token, words = secrets.token_hex(16), self._words()
        self.processes = [self._start(rank, token, words) for rank in range(len(self.places))]

    def _words(self):
        run, data = self.run, ["--data", str(data_of(self.lab, self.scenario))]
        script = ["--switch-at", ",".join(f"{step}:{self._plan(devices, words)}" for step, devices, words in run.switches)] if run.switches else []
        own = [str(PLANS.parent / word) if word.startswith("plans/") else word for word in run.words]
        if run.kind == "train":
            # Emulated machines are none that this one's history should learn from, or be planned by.
            return ["train", "--history", "none", *self.scenario.training, *own, *data, "--run", str(self.folder), *script]
        if run.kind == "resume":
            return ["train", "--resume", str(self.folder), *run.words, *script]
        return ["profile", "--links", "--json", *run.words, "--out", str(self.lab.shared / "cluster.json")]

    def _plan(self, devices, words):
        """A plan for the scenario's training, by the planner."""
        folder = self.lab.folder / "plans" / "_".join([str(devices), *words]).replace("/", "_")
        if not (folder / "plan.json").exists():
            given = self.scenario.training
            shape = [word for flag, value in zip(given, given[1:]) if flag in PLANNED for word in (flag, value)]
            done = subprocess.run([binary(), "plan", *shape, "--vocab", str(BYTE_TOKENS), "--cluster", f"cpux{devices}", *words, "--export", "optimus", "--out", str(folder)],
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
            if done.returncode != 0:
                raise Failed(f"no plan for {devices} devices with {' '.join(words)}: {done.stderr.strip()}")
        return folder / "plan.json"

    def _start(self, rank, token, words):
        name, device = self.places[rank]
        variables = {"RANK": rank, "WORLD_SIZE": len(self.places), "LOCAL_RANK": device, "LOCAL_WORLD_SIZE": self.scenario.hosts[name].devices,
                     "MASTER_ADDR": self.lab.network.address(self.run.hosts[0]), "MASTER_PORT": PORT, "OPTIMUS_TOKEN": token, "OMP_NUM_THREADS": 1}
        return self._process(rank, words, variables)

    def _process(self, number, words, variables):
        name, device = self.places[number]
        with open(self.logs / f"rank-{number}.out", "w") as out, open(self.logs / f"rank-{number}.err", "w") as errors:
            return self.lab.start(name, device, [binary(), *words], {key: str(value) for key, value in variables.items()},
                                  stdin=subprocess.DEVNULL, stdout=out, stderr=errors)

    def join(self, name):
        """One process more, on this host."""
        self.places.append((name, sum(place[0] == name for place in self.places)))
        self.processes.append(self._process(len(self.processes), ["join", str(self.folder)], {"OMP_NUM_THREADS": 1}))

    def matching(self, who):
        """Ranks on "host2", or "host2/1"."""
        name, _, device = who.partition("/")
        return [rank for rank, place in enumerate(self.places) if place[0] == name and device in ("", str(place[1]))]

    def signal(self, who, number):
        for rank in self.matching(who):
            self.disturbed.add(rank)
            if self.processes[rank].poll() is None:
                self.processes[rank].send_signal(number)

    def notice(self, who):
        """A launcher says that they will be taken away: they leave by themselves."""
        for rank in self.matching(who):
            self.leaving.add(rank)
            if self.processes[rank].poll() is None:
                self.processes[rank].send_signal(signal.SIGTERM)

    def ended_well(self, rank):
        """130: who was told to leave while the others had gone on without it has nobody to give anything to."""
        return self.processes[rank].returncode in ((0, 130) if rank in self.leaving else (self.run.expected.exit,))

    def left_in_peace(self):
        return [rank for rank in range(len(self.places)) if rank not in self.disturbed]

    def last_line(self, rank):
        lines = (self.logs / f"rank-{rank}.err").read_text(errors="replace").replace("\r", "\n").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def are_listed(self):
        """All have found each other; the first step is still to come."""
        try:
            return len(json.loads((self.folder / "workers.json").read_text())["workers"]) == len(self.places)
        except (OSError, ValueError):
            return False

    def is_saving(self):
        """Whether a checkpoint is being written."""
        return any((self.folder / "checkpoints").glob("*.tmp-*"))

    def has_ended(self):
        return all(self.processes[rank].poll() is not None for rank in self.left_in_peace())

    def end_disturbed(self):
        """Who was stopped is ended by its launcher at last."""
        for rank in self.disturbed:
            self.processes[rank].kill()
            self.processes[rank].wait()


class Player:
    """One scenario on one cluster. say: gets lines for people; alone: what one device did, by its words."""
    processes = Ranks  # of a run; who starts them otherwise has its own

    def __init__(self, scenario, lab, say, alone):
        self.scenario, self.lab, self.say, self.alone = scenario, lab, say, alone
        self.cuts = set()

    def play(self):
        write_data(data_of(self.lab, self.scenario), self.scenario)
        for name, host in self.scenario.hosts.items():
            if host.bits_per_second:
                self.lab.network.shape(name, host.bits_per_second, self.scenario.latency)
        if self.scenario.disk:
            self.lab.small_disk(self.scenario.disk)
        for number, run in enumerate(self.scenario.runs, 1):
            self._play_run(number, run)

    def _play_run(self, number, run):
        ranks = self.processes(self.lab, self.scenario, run, number)
        self.say(f"run {number}: {run.kind} {' '.join(run.words)}  ({len(ranks.places)} ranks on {', '.join(run.hosts)})")
        try:
            first_event_step = self._let_happen(ranks)
            self._wait_for_end(ranks)
            ranks.end_disturbed()
            self._check(ranks, first_event_step)
        except Failed as failed:
            raise Failed(f"run {number}: {failed}{self._told(ranks)}") from failed

    def _told(self, ranks):
        lines = [f"\n    rank {rank} on {place[0]}/{place[1]} ({_how(ranks.processes[rank].poll())}): {ranks.last_line(rank)}" for rank, place in enumerate(ranks.places)]
        return "".join(lines)

    def _note(self, ranks, text):
        self.say(f"  {time.monotonic() - ranks.began:6.2f} s  {text}")

    def _let_happen(self, ranks):
        """All events, in order. How many steps were done at the first."""
        step = None
        before = ranks.began
        for event in ranks.run.events:
            self._wait_for(ranks, event, before)
            time.sleep(event.delay)
            done = len(read_rows(ranks.folder))
            step = done if step is None else step
            self._note(ranks, f"step {done}: {event.text()}")
            self._act(ranks, event)
            before = time.monotonic()
        return step

    def _wait_for(self, ranks, event, before):
        end = time.monotonic() + 120
        origin = before if event.when == "after" else ranks.began
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
        raise Failed(f"'{event.text()}' {event.when.replace('_', ' ')} {event.moment:g} did not come within 120 s")

    def _act(self, ranks, event):
        network, what, who = self.lab.network, event.what, event.who
        if what == "kill":
            ranks.signal(who, signal.SIGKILL)
        elif what == "stop":
            ranks.signal(who, signal.SIGSTOP)
        elif what == "continue":
            ranks.signal(who, signal.SIGCONT)
            ranks.disturbed -= set(ranks.matching(who))
        elif what == "notice":
            ranks.notice(who)
        elif what == "join":
            ranks.join(who)
        elif what == "cut":
            for pair in self._pairs(who):
                network.cut(*pair)
                self.cuts.add(pair)
        elif what == "heal":
            self._heal(who)
        elif what == "slow":
            network.shape(who, event.to, self.scenario.latency)
        elif what == "pace":
            for rank in ranks.matching(who):
                self.lab.set_pace(*ranks.places[rank], event.to)
        elif what == "fill_disk":
            self.lab.fill_disk()
        elif what == "free_disk":
            self.lab.free_disk()
        else:
            raise AssertionError(what)

    def _pairs(self, who):
        """Of "host1-host3", or all of "host3"."""
        names = who.split("-")
        if len(names) == 2:
            return [tuple(sorted(names))]
        return [tuple(sorted((who, other))) for other in self.scenario.hosts if other != who]

    def _heal(self, who):
        """Cuts are undone, speeds are the scenario's again."""
        for pair in self._pairs(who):
            if pair in self.cuts:
                self.lab.network.join_again(*pair)
                self.cuts.remove(pair)
        for name in who.split("-"):
            if self.scenario.hosts[name].bits_per_second:
                self.lab.network.shape(name, self.scenario.hosts[name].bits_per_second, self.scenario.latency)

    def _wait_for_end(self, ranks):
        within = ranks.run.expected.within
        end = time.monotonic() + within
        while not ranks.has_ended():
            if time.monotonic() > end:
                late = [rank for rank in ranks.left_in_peace() if ranks.processes[rank].poll() is None]
                raise Failed(f"ranks {late} have not ended within {within:g} s")
            time.sleep(0.01)
        self._note(ranks, f"all {'others ' if ranks.disturbed else ''}have ended, at step {len(read_rows(ranks.folder))}")

    def _check(self, ranks, first_event_step):
        expected = ranks.run.expected
        in_peace = ranks.left_in_peace()
        if not all(ranks.ended_well(rank) for rank in in_peace):
            raise Failed(f"expected exit {expected.exit} of ranks {in_peace}, got {[ranks.processes[rank].returncode for rank in in_peace]}")
        lines = [ranks.last_line(rank) for rank in in_peace]
        for text in expected.says:
            if not any(text in line for line in lines):
                raise Failed(f"no last line says {text!r}")
        everything = [(ranks.logs / f"rank-{rank}.err").read_text(errors="replace") for rank in in_peace]
        for text in expected.prints:
            if not any(text in one for one in everything):
                raise Failed(f"nobody prints {text!r}")
        lost = [int(count) for one in everything for count in re.findall(r"(\d+) steps? lost", one)]
        if expected.most_lost >= 0 and max(lost, default=0) > expected.most_lost:
            raise Failed(f"{max(lost)} steps were lost at once, {expected.most_lost} may be")
        if expected.times_lost >= 0 and len(lost) != expected.times_lost:
            raise Failed(f"steps were lost {len(lost)} times, not {expected.times_lost}")
        if expected.exit != 0 and lines:
            self.say(f"    {next((line for line in lines if line), 'no line')}")
        if expected.losses:
            self._check_losses(ranks)
        if ranks.run.switches and expected.exit == 0:
            self._check_switches(ranks)
        if expected.slower:
            self._check_slower(ranks, first_event_step)
        if expected.links:
            self._check_links(ranks, expected.links)
        left = self.lab.leftovers()
        kept = [one for one in left if one.startswith("shared memory ")]
        if expected.keeps_memory and not kept:
            raise Failed("no host has anything in its memory")
        if expected.keeps_memory:
            left = [one for one in left if one not in kept]
        if left:
            raise Failed("left behind: " + ", ".join(left))

    def _check_losses(self, ranks):
        ours, alone = read_rows(ranks.folder), self._one_device()
        if [row["step"] for row in ours] != [row["step"] for row in alone]:
            raise Failed(f"steps {[row['step'] for row in ours]}, expected 1 to {len(alone)}, each once")
        far = {key: max(abs(row[key] / one[key] - 1) for row, one in zip(ours, alone)) for key in ("loss", "grad_norm")}
        if not all(part <= CLOSE for part in far.values()):
            raise Failed(f"losses and gradients' norms differ from one device's by up to {far} of them, not by {CLOSE:g}")
        self._note(ranks, f"{len(ours)} losses are one device's within {far['loss']:.1e}, norms of gradients within {far['grad_norm']:.1e}")

    def _check_switches(self, ranks):
        decisions = [json.loads(line) for line in (ranks.folder / "decisions.jsonl").read_text().splitlines()]
        steps, expected = [one["step"] for one in decisions], [step for step, _, _ in ranks.run.switches]
        if steps != expected:
            raise Failed(f"the plan changed behind steps {steps}, not {expected}")
        more = [one for one in decisions if one["moved_bytes"] != one["minimum_bytes"]]
        if more:
            raise Failed(f"more was moved than needed: {more}")
        moved, paused = sum(one["moved_bytes"] for one in decisions), [one["pause_seconds"] for one in decisions]
        self._note(ranks, f"{len(decisions)} changes of plan moved {moved / 1e6:.2f} MB, the fewest possible, and took {min(paused):.2f} to {max(paused):.2f} s")

    def _one_device(self):
        """The same training by one process, outside of all hosts."""
        words = tuple(self.scenario.training)
        if words not in self.alone:
            folder = self.lab.folder / "alone"
            done = subprocess.run([binary(), "train", "--history", "none", *self.scenario.training, "--devices", "1", "--data", str(data_of(self.lab, self.scenario)), "--run", str(folder)],
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
            if done.returncode != 0:
                raise Failed(f"one device: {done.stderr}")
            self.alone[words] = read_rows(folder)
        return self.alone[words]

    def _check_slower(self, ranks, step):
        # The first steps are not like the others, and the step of the event is of both kinds.
        seconds = [row["seconds"] for row in read_rows(ranks.folder)]
        before, after = seconds[2:step - 1], seconds[step + 1:]
        if len(before) < 3 or len(after) < 3:
            raise Failed(f"too few steps to compare: {len(before)} before the event, {len(after)} after it")
        ratio = statistics.median(after) / statistics.median(before)
        self._note(ranks, f"steps take {ratio:.1f} times as long after it")
        if ratio < ranks.run.expected.slower:
            raise Failed(f"steps take {ratio:.2f} times as long after the event, not {ranks.run.expected.slower:g}")

    def _check_links(self, ranks, tolerance):
        seconds = json.loads((ranks.logs / "rank-0.out").read_text())["hardware"]["seconds"]
        self._note(ranks, f"measuring took {seconds:.1f} s")
        if seconds > MOST_SECONDS:
            raise Failed(f"measuring took {seconds:.1f} s, not {MOST_SECONDS}")
        measured = json.loads((self.lab.shared / "cluster.json").read_text())
        rates = [group["network"]["bytes_per_second"] * 8 for group in measured["groups"] for _ in range(-(-group["devices"] // group["devices_per_node"]))]
        if len(rates) != len(self.scenario.hosts):
            raise Failed(f"{len(rates)} nodes measured, not {len(self.scenario.hosts)}")
        for rate, (name, host) in zip(rates, self.scenario.hosts.items()):
            self.say(f"    {name}: measured {rate / 1e6:.0f} Mbit, told {host.bits_per_second / 1e6:.0f}")
            if abs(rate / host.bits_per_second - 1) > tolerance:
                raise Failed(f"{name}: {rate / 1e6:.0f} Mbit measured, {host.bits_per_second / 1e6:.0f} told: not within {tolerance:.0%}")


def _how(code):
    if code is None:
        return "runs"
    return signal.Signals(-code).name if code < 0 else f"exit {code}"


def play(scenario, say, keep=None, alone=None):
    """Throws Failed, and cluster.Unavailable. keep: a folder that gets logs and run folders, in any case. alone: filled with what one device did, so that later scenarios
    with the same words need not repeat it."""
    hosts = {name: (host.devices, host.speed) for name, host in scenario.hosts.items()}
    if "cuda" in scenario.training and not pathlib.Path("/dev/nvidiactl").exists():
        raise cluster.Unavailable("this machine has no GPU")
    if scenario.latency and not cluster.has_netem():
        say("this kernel has no netem: latency is what it is")
        scenario.latency = 0
    with cluster.Cluster(hosts) as lab:
        for name, host in scenario.hosts.items():
            link = f"{host.bits_per_second / 1e6:g} Mbit" if host.bits_per_second else "no limit"
            say(f"{name}: {lab.network.address(name)}, {host.devices} devices{'' if host.speed == 1 else f' of {host.speed:g} core'}, link {link}")
        try:
            Player(scenario, lab, say, {} if alone is None else alone).play()
        finally:
            if keep is not None:
                for part in ("logs", "shared"):
                    if (lab.folder / part).exists():
                        shutil.copytree(lab.folder / part, keep / part, ignore=shutil.ignore_patterns(".filler"), dirs_exist_ok=True)
