"""The format of scenario files: an emulated cluster, what runs on it, which events happen, and what is expected. This file only parses and
validates; training.py runs scenarios. docs/results/lab.md explains the keys with examples."""
import dataclasses
import json
import math
import pathlib
import re
import typing

try:
    import tomllib
except ImportError:  # before Python 3.11
    tomllib = None

BITS = {"bit": 1, "Kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}
BYTES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60}


class ScenarioError(Exception):
    pass


@dataclasses.dataclass
class Host:
    devices: int = 1
    speed: float = 1.0  # fraction of a core, for each device
    bits_per_second: float = 0  # 0: no limit


@dataclasses.dataclass
class Event:
    # at_start (all ranks have joined), at_step, at_save (the first checkpoint after that step), at_second (of the run), after (seconds
    # after the previous event)
    when: str
    moment: float
    delay: float  # additional seconds
    what: str  # one of ACTIONS
    target: typing.Any = True
    to: float = 0  # slow: bits per second; pace: fraction of a core

    def text(self):
        name = f"{self.what.replace('_', ' ')} {'' if self.target is True else self.target}".strip()
        return name + (f" to {self.to / 1e6:g} Mbit" if self.what == "slow" else f" to {self.to:g}" if self.what == "pace" else "")


@dataclasses.dataclass
class Expected:
    exit: int = 0  # exit code of every undisturbed rank
    last_line: list = dataclasses.field(default_factory=list)  # each must be in the last line of stderr of one of these ranks
    prints: list = dataclasses.field(default_factory=list)  # each must be anywhere in stderr of one of these ranks
    most_lost: int = -1  # steps that may be lost at once, as reported by the ranks; -1: any number
    times_lost: int = -1  # how often steps were lost; -1: any number
    keeps_memory: bool = False  # the hosts' memory must contain state of the run afterwards
    losses: str = ""  # "as one device": every loss within 1e-9 of the same training on one device
    slower: float = 0  # steps after the first event must take at least this many times as long as before
    links: float = 0  # largest relative difference of measured links from the configured speed
    within: float = 30  # seconds from the last event, or from the start without events, until all ranks have ended


@dataclasses.dataclass
class Run:
    kind: str  # train, resume, measure
    args: list
    hosts: list
    events: list
    expected: Expected
    # (step after which it happens, number of devices, arguments of `optimus plan`)
    switches: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Scenario:
    name: str
    about: str
    training: list  # arguments shared by all runs and the run on one device
    hosts: dict
    latency: float
    disk: int  # bytes of the shared folder; 0: no limit
    runs: list
    documents: str = "one"  # one text; "uneven": some documents as long as a sequence, most of them short


ACTIONS = ("kill", "stop", "continue", "notice", "join", "cut", "heal", "slow", "pace", "fill_disk", "free_disk")
WHENS = ("at_start", "at_step", "at_save", "at_second", "after")
KINDS = ("train", "resume", "measure")


def _only(table, known, where):
    for key in table:
        if key not in known:
            raise ScenarioError(f"{where}: unknown key {key!r}; known are {', '.join(known)}")


def quantity(text, units, where):
    """Parses a number with a unit: "100 Mbit" -> 1e8."""
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([A-Za-z]+)\s*", str(text))
    if not found or found[2] not in units:
        raise ScenarioError(f"{where}: {text!r} is not a number with one of the units {', '.join(units)}")
    value = float(found[1]) * units[found[2]]
    if not math.isfinite(value) or value <= 0:
        raise ScenarioError(f"{where}: {text!r} is not positive")
    return value


def _number(value, least, most, where):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ScenarioError(f"{where}: {value!r} is not a number from {least} to {most}")
    return value


def _hosts(table, links, where):
    hosts = {}
    if not table or len(table) > 200:
        raise ScenarioError(f"{where}: needs 1 to 200 hosts, not {len(table)}")
    for name, entry in table.items():
        at = f"{where}, host {name}"
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,30}", name) or name == "all":
            raise ScenarioError(f"{at}: a host name has up to 31 letters and digits and is not 'all' or 'latency'")
        _only(entry, ("devices", "speed"), at)
        speed = links.get(name, links.get("all"))
        hosts[name] = Host(int(_number(entry.get("devices", 1), 1, 64, at + ", devices")), float(_number(entry.get("speed", 1), 0.1, 1, at + ", speed")),
                           quantity(speed, BITS, f"{where}, links") if speed else 0)
    return hosts


def _check_target(what, target, hosts, where):
    if what in ("kill", "stop", "continue", "notice", "pace"):
        name, _, device = str(target).partition("/")
        if name in hosts and (not device or (device.isdigit() and int(device) < hosts[name].devices)):
            return
        raise ScenarioError(f"{where}: {what} = {target!r} is neither a host nor a device such as \"{next(iter(hosts))}/0\"")
    if what in ("fill_disk", "free_disk"):
        if target is not True:
            raise ScenarioError(f"{where}: {what} must be true or omitted")
        return
    names = str(target).split("-")
    if not all(name in hosts for name in names) or len(names) > (1 if what in ("slow", "join") else 2):
        raise ScenarioError(f"{where}: {what} = {target!r} does not name hosts of the scenario ({', '.join(hosts)})")


def _event(table, hosts, where):
    _only(table, (*WHENS, *ACTIONS, "delay", "to"), where)
    when_keys, action_keys = [key for key in WHENS if key in table], [key for key in ACTIONS if key in table]
    if len(when_keys) != 1 or len(action_keys) != 1:
        raise ScenarioError(f"{where}: needs one of {', '.join(WHENS)} and one of {', '.join(ACTIONS)}")
    when, what = when_keys[0], action_keys[0]
    if when == "after":
        moment = quantity(table[when], SECONDS, f"{where}, after")
    elif when == "at_start":
        if table[when] is not True:
            raise ScenarioError(f"{where}: at_start must be true or omitted")
        moment = 0
    else:
        moment = _number(table[when], 0, 1e6, f"{where}, {when}")
    _check_target(what, table[what], hosts, where)
    if (what in ("slow", "pace")) != ("to" in table):
        raise ScenarioError(f"{where}: 'slow' or 'pace', and 'to' belong together: slow = \"host2\", to = \"100 Mbit\"; pace = \"host2/0\", to = 0.2")
    delay = quantity(table["delay"], SECONDS, f"{where}, delay") if "delay" in table else 0
    to = quantity(table["to"], BITS, f"{where}, to") if what == "slow" else _number(table["to"], 0.1, 1, f"{where}, to") if what == "pace" else 0
    return Event(when, moment, delay, what, table[what], to)


def _expected(table, where):
    fields = [field.name for field in dataclasses.fields(Expected)]
    _only(table, fields, where)
    expected = Expected(**{key: value for key, value in table.items() if key not in ("within", "last_line", "prints")})
    for key in ("last_line", "prints"):
        texts = table.get(key, [])
        setattr(expected, key, [texts] if isinstance(texts, str) else list(texts))
    if "within" in table:
        expected.within = quantity(table["within"], SECONDS, f"{where}, within")
    if expected.losses not in ("", "as one device"):
        raise ScenarioError(f"{where}: losses can be expected \"as one device\", not {expected.losses!r}")
    return expected


def _switch(entry, where):
    """Parses "12: --devices 4 --pp 2 --dp 2": the plan that the run uses after this step. --devices is the number of ranks that it uses."""
    found = re.fullmatch(r"\s*(\d+)\s*:(.*)", str(entry))
    args = found[2].split() if found else []
    if "--devices" not in args[:-1] or not args[args.index("--devices") + 1].isdigit():
        raise ScenarioError(f"{where}: {entry!r} is not \"STEP: --devices N WORDS\"")
    at = args.index("--devices")
    return int(found[1]), int(args[at + 1]), args[:at] + args[at + 2:]


def _run(table, hosts, where):
    _only(table, (*KINDS, "hosts", "event", "expect", "switch"), where)
    kinds = [key for key in KINDS if key in table]
    if len(kinds) != 1:
        raise ScenarioError(f"{where}: needs one of {', '.join(KINDS)}: arguments of the command line")
    names = table.get("hosts", list(hosts))
    for name in names:
        if name not in hosts:
            raise ScenarioError(f"{where}: {name!r} is not a host of the scenario ({', '.join(hosts)})")
    events = [_event(entry, hosts, f"{where}, event {i + 1}") for i, entry in enumerate(table.get("event", []))]
    switches = [_switch(entry, f"{where}, switch {i + 1}") for i, entry in enumerate(table.get("switch", []))]
    if switches and kinds[0] == "measure":
        raise ScenarioError(f"{where}: measuring has no plan to switch")
    return Run(kinds[0], str(table[kinds[0]]).split(), names, events, _expected(table.get("expect", {}), f"{where}, expect"), switches)


def read_table(table, name):
    """Returns the scenario of a parsed TOML or JSON file. Throws ScenarioError."""
    _only(table, ("about", "training", "documents", "hosts", "links", "disk", "run"), name)
    links = table.get("links", {})
    _only(links, ("all", "latency", *table.get("hosts", {})), f"{name}, links")
    hosts = _hosts(table.get("hosts", {}), links, name)
    latency = quantity(links["latency"], SECONDS, f"{name}, latency") if "latency" in links else 0
    disk = int(quantity(table["disk"], BYTES, f"{name}, disk")) if "disk" in table else 0
    runs = [_run(entry, hosts, f"{name}, run {i + 1}") for i, entry in enumerate(table.get("run", []))]
    if not runs:
        raise ScenarioError(f"{name}: needs a [[run]]")
    documents = table.get("documents", "one")
    if documents not in ("one", "uneven"):
        raise ScenarioError(f"{name}: documents must be 'one' or 'uneven', not {documents!r}")
    return Scenario(name, table.get("about", ""), _training(table.get("training", "")), hosts, latency, disk, runs, documents)


def _training(args):
    """Adds `--device cpu` unless another device is given: a GPU of this machine does not have the speeds of the lab's devices."""
    return args.split() if "--device" in args.split() else [*args.split(), "--device", "cpu"]


def read_scenario(path):
    path = pathlib.Path(path)
    try:
        content = path.read_text()
        if path.suffix == ".json":
            table = json.loads(content)
        elif tomllib is None:
            raise ScenarioError(f"{path}: this Python reads only JSON scenarios; TOML needs Python 3.11")
        else:
            table = tomllib.loads(content)
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: {error}") from error
    return read_table(table, path.stem)
