"""Random faults as scenarios. random_scenario: faults that end a run: two hosts of two devices, a random plan, and one fault at a random
instant of the start, of a step or of a save. The same seed gives the same scenario; the exact instant within a step still depends on the
clock. random_survival: sequences of faults that a run must survive."""
import random

import scenario

TRAINING = ("--model gpt2 --layers 2 --hidden 32 --heads 2 --seq 24 --batch 4 --lr 1e-2 --sample 0 --threads 1 --precision fp64 "
            "--steps 60 --save-every 5 --keep-last 0 --timeout 3s --start-timeout 12s")
PLANS = ("--dp 4", "--dp 2 --tp 2", "--pp 2 --dp 2", "--dp 4 --zero 3", "--dp 4 --zero 1", "--tp 2 --pp 2 --microbatch 1", "--pp 2 --dp 2 --zero 1 --microbatch 1")
AFTERWARDS = ((["host1", "host2"], "--devices 4"), (["host1"], "--devices 2"), (["host2"], "--devices 2"))


def random_scenario(seed):
    generator = random.Random(seed)
    kind = generator.choice(("kill", "kill host", "stop", "cut", "fill_disk"))
    device_name = f"{generator.choice(('host1', 'host2'))}/{generator.randrange(2)}"
    action = {"kill": {"kill": device_name}, "kill host": {"kill": device_name.split("/")[0]}, "stop": {"stop": device_name}, "cut": {"cut": "host1-host2"}, "fill_disk": {"fill_disk": True}}[kind]
    instant, longest = generator.choice((("at_start", 700), ("at_step", 30), ("at_step", 30), ("at_save", 15)))
    event = {instant: True if instant == "at_start" else generator.randint(6, 40), "delay": f"{generator.uniform(0.01, longest):.2f} ms", **action}
    hosts, args = generator.choice(AFTERWARDS)
    healed = {"event": [{"at_second": 0, "heal": "host1"}]} if kind == "cut" else {"event": [{"at_second": 0, "free_disk": True}]} if kind == "fill_disk" else {}
    table = {
        "about": f"{kind}{' ' + device_name if kind in ('kill', 'stop') else ''} {instant.replace('_', ' ')} {event[instant]} + {event['delay']}; seed {seed}",
        "training": TRAINING,
        "hosts": {"host1": {"devices": 2}, "host2": {"devices": 2}},
        "links": {"all": "1 Gbit"},
        "disk": "256 MiB",
        "run": [
            {"train": generator.choice(PLANS) + " --static", "event": [event], "expect": {"exit": 1, "within": "25 s"}},
            {"resume": args, "hosts": hosts, **healed, "expect": {"losses": "as one device", "within": "60 s"}},
        ],
    }
    return scenario.read_table(table, f"random-{seed}")


SURVIVORS = ("--dp 8 --zero 0", "--pp 2 --dp 4 --zero 0", "--tp 2 --dp 4 --zero 0", "--pp 4 --dp 2 --zero 0", "")


SURVIVAL = TRAINING.replace("--layers 2", "--layers 4").replace("--batch 4", "--batch 24").replace("--timeout 3s --start-timeout 12s", "--timeout 60s")
MAX_JOINED = 2


class ClusterState:
    """Tracks the state of all devices, so that enough stay alive and no event happens to a device that is absent."""

    def __init__(self, generator, hosts):
        self.generator, self.hosts = generator, hosts
        self.alive = [f"{name}/{device}" for name, host in hosts.items() for device in range(host["devices"])]
        self.stopped, self.cut, self.num_joined = [], None, 0

    def kinds(self):
        result = ["kill", "stop", "notice"] if len(self.alive) > 4 else []
        result += ["continue"] if self.stopped else []
        result += ["heal"] if self.cut else ["cut"] if len(self.alive) == 8 else []
        return result + (["join"] if self.num_joined < MAX_JOINED else [])

    def apply(self, kind):
        """Applies an event of this kind to a random target and returns the target."""
        if kind in ("kill", "stop", "notice"):
            target = self.alive.pop(self.generator.randrange(len(self.alive)))
            if kind == "stop":
                self.stopped.append(target)
            return target
        if kind == "continue":
            self.alive.append(self.stopped.pop())
            return self.alive[-1]
        if kind == "join":
            self.num_joined += 1
            return self.generator.choice([name for name in self.hosts if name != self.cut])
        target = self.cut or self.generator.choice(list(self.hosts))
        self.cut = None if self.cut else target
        return target


def random_survival(seed):
    """Several consecutive faults of a run that continues on its own: kill, stop, continue, notice, join, cut, heal on eight devices of
    three hosts."""
    generator = random.Random(seed)
    hosts = {"host1": {"devices": 2}, "host2": {"devices": 3}, "host3": {"devices": 3}}
    state, events, step = ClusterState(generator, hosts), [], 0
    for _ in range(generator.randint(3, 6)):
        kind = generator.choice(state.kinds())
        step += generator.randint(1, 8)
        events.append({"at_step": step, "delay": f"{generator.uniform(0.01, 60):.2f} ms", kind: state.apply(kind)})
    if state.cut:
        events.append({"after": "1 s", "heal": state.cut})
    table = {
        "about": "; ".join(f"{key} {event[key]}" for event in events for key in event if key not in ("at_step", "delay", "after")) + f"; seed {seed}",
        "training": SURVIVAL,
        "hosts": hosts,
        "links": {"all": "1 Gbit"},
        "run": [{"train": generator.choice(SURVIVORS), "event": events, "expect": {"losses": "as one device", "within": "120 s"}}],
    }
    return scenario.read_table(table, f"survival-{seed}")
