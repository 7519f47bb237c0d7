"""Random faults as scenarios. Those that end a run: two hosts of two devices, a plan, and one fault at an instant that nobody chose: in the start, a step or a save. The same seed gives the same
scenario; the instant within a step still differs, as everything does that depends on a clock."""
import random

import scenario

TRAINING = ("--model gpt2 --layers 2 --hidden 32 --heads 2 --seq 24 --batch 4 --lr 1e-2 --sample 0 --threads 1 --precision fp64 "
            "--steps 60 --save-every 5 --keep-last 0 --timeout 3s --start-timeout 12s")
PLANS = ("--dp 4", "--dp 2 --tp 2", "--pp 2 --dp 2", "--dp 4 --zero 3", "--dp 4 --zero 1", "--tp 2 --pp 2 --microbatch 1", "--pp 2 --dp 2 --zero 1 --microbatch 1")
AFTERWARDS = ((["host1", "host2"], "--devices 4"), (["host1"], "--devices 2"), (["host2"], "--devices 2"))


def random_scenario(seed):
    dice = random.Random(seed)
    kind = dice.choice(("kill", "kill host", "stop", "cut", "fill_disk"))
    place = f"{dice.choice(('host1', 'host2'))}/{dice.randrange(2)}"
    action = {"kill": {"kill": place}, "kill host": {"kill": place.split("/")[0]}, "stop": {"stop": place}, "cut": {"cut": "host1-host2"}, "fill_disk": {"fill_disk": True}}[kind]
    instant, longest = dice.choice((("at_start", 700), ("at_step", 30), ("at_step", 30), ("at_save", 15)))
    event = {instant: True if instant == "at_start" else dice.randint(6, 40), "delay": f"{dice.uniform(0.01, longest):.2f} ms", **action}
    hosts, words = dice.choice(AFTERWARDS)
    healed = {"event": [{"at_second": 0, "heal": "host1"}]} if kind == "cut" else {"event": [{"at_second": 0, "free_disk": True}]} if kind == "fill_disk" else {}
    table = {
        "about": f"{kind}{' ' + place if kind in ('kill', 'stop') else ''} {instant.replace('_', ' ')} {event[instant]} + {event['delay']}; seed {seed}",
        "training": TRAINING,
        "hosts": {"host1": {"devices": 2}, "host2": {"devices": 2}},
        "links": {"all": "1 Gbit"},
        "disk": "256 MiB",
        "run": [
            {"train": dice.choice(PLANS) + " --static", "event": [event], "expect": {"exit": 1, "within": "25 s"}},
            {"resume": words, "hosts": hosts, **healed, "expect": {"losses": "as one device", "within": "60 s"}},
        ],
    }
    return scenario.read_table(table, f"random-{seed}")


SURVIVORS = ("--dp 8 --zero 0", "--pp 2 --dp 4 --zero 0", "--tp 2 --dp 4 --zero 0", "--pp 4 --dp 2 --zero 0", "")


SURVIVAL = TRAINING.replace("--layers 2", "--layers 4").replace("--batch 4", "--batch 24").replace("--timeout 3s --start-timeout 12s", "--timeout 60s")
MOST_JOINED = 2


class Fate:
    """Who is there, so that enough stay and nothing happens to who is gone."""

    def __init__(self, dice, hosts):
        self.dice, self.hosts = dice, hosts
        self.alive = [f"{name}/{device}" for name, host in hosts.items() for device in range(host["devices"])]
        self.stopped, self.cut, self.num_joined = [], None, 0

    def kinds(self):
        result = ["kill", "stop", "notice"] if len(self.alive) > 4 else []
        result += ["continue"] if self.stopped else []
        result += ["heal"] if self.cut else ["cut"] if len(self.alive) == 8 else []
        return result + (["join"] if self.num_joined < MOST_JOINED else [])

    def happen(self, kind):
        """To whom."""
        if kind in ("kill", "stop", "notice"):
            who = self.alive.pop(self.dice.randrange(len(self.alive)))
            if kind == "stop":
                self.stopped.append(who)
            return who
        if kind == "continue":
            self.alive.append(self.stopped.pop())
            return self.alive[-1]
        if kind == "join":
            self.num_joined += 1
            return self.dice.choice([name for name in self.hosts if name != self.cut])
        who = self.cut or self.dice.choice(list(self.hosts))
        self.cut = None if self.cut else who
        return who


def random_survival(seed):
    """Several faults, one after the other, of a run that goes on by itself: kill, stop, continue, notice, join, cut, heal on eight devices of three hosts."""
    dice = random.Random(seed)
    hosts = {"host1": {"devices": 2}, "host2": {"devices": 3}, "host3": {"devices": 3}}
    fate, events, step = Fate(dice, hosts), [], 0
    for _ in range(dice.randint(3, 6)):
        kind = dice.choice(fate.kinds())
        step += dice.randint(1, 8)
        events.append({"at_step": step, "delay": f"{dice.uniform(0.01, 60):.2f} ms", kind: fate.happen(kind)})
    if fate.cut:
        events.append({"after": "1 s", "heal": fate.cut})
    table = {
        "about": "; ".join(f"{key} {event[key]}" for event in events for key in event if key not in ("at_step", "delay", "after")) + f"; seed {seed}",
        "training": SURVIVAL,
        "hosts": hosts,
        "links": {"all": "1 Gbit"},
        "run": [{"train": dice.choice(SURVIVORS), "event": events, "expect": {"losses": "as one device", "within": "120 s"}}],
    }
    return scenario.read_table(table, f"survival-{seed}")
