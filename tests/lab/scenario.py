"""What a scenario file says: an emulated cluster, what is run on it, what happens meanwhile, and what is expected. This file only reads and
checks; training.py does it. docs/results/lab.md explains the keys by example."""
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
    speed: float = 1.0  # of a core, for each device
    bits_per_second: float = 0  # 0: as fast as it goes


@dataclasses.dataclass
class Event:
    when: str  # at_start (all ranks are there), at_step, at_save (the first after that step), at_second (of the run), after (seconds after the event before)
    moment: float
    delay: float  # seconds after that
    what: str  # one of ACTIONS
    who: typing.Any = True
    to: float = 0  # slow: bits a second; pace: of a core

    def text(self):
        name = f"{self.what.replace('_', ' ')} {'' if self.who is True else self.who}".strip()
        return name + (f" to {self.to / 1e6:g} Mbit" if self.what == "slow" else f" to {self.to:g}" if self.what == "pace" else "")


@dataclasses.dataclass
class Expected:
    exit: int = 0  # of every rank that was left in peace
    says: list = dataclasses.field(default_factory=list)  # each in the last line of errors of one of these
    prints: list = dataclasses.field(default_factory=list)  # each anywhere in the errors of one of these
    most_lost: int = -1  # steps that were lost at once, as ranks say; -1: any number
    times_lost: int = -1  # how often steps were lost; -1: any number
    keeps_memory: bool = False  # state of the run lies in the hosts' memory afterwards
    losses: str = ""  # "as one device": every step, within 1e-9 of the same training on one device
    slower: float = 0  # steps after the first event take at least so many times as long as before
    links: float = 0  # measured links differ by at most this part from what the lab was told
    within: float = 30  # seconds from the last event, or from the start where there is none, until all have ended


@dataclasses.dataclass
class Run:
    kind: str  # train, resume, measure
    words: list
    hosts: list
    events: list
    expected: Expected
    switches: list = dataclasses.field(default_factory=list)  # (step after which it comes, devices, words for `optimus plan`)


@dataclasses.dataclass
class Scenario:
    name: str
    about: str
    training: list  # words that all runs and the one device share
    hosts: dict
    latency: float
    disk: int  # bytes of the shared folder; 0: no limit
    runs: list
    documents: str = "one"  # the text; "uneven": some as long as a sequence, most of them short


ACTIONS = ("kill", "stop", "continue", "notice", "join", "cut", "heal", "slow", "pace", "fill_disk", "free_disk")
WHENS = ("at_start", "at_step", "at_save", "at_second", "after")
KINDS = ("train", "resume", "measure")


def _only(table, known, where):
    for key in table:
        if key not in known:
            raise ScenarioError(f"{where}: unknown key {key!r}; known are {', '.join(known)}")


def quantity(text, units, where):
    """"100 Mbit" -> 1e8."""
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([A-Za-z]+)\s*", str(text))
    if not found or found[2] not in units:
        raise ScenarioError(f"{where}: {text!r} is not a number with one of the units {', '.join(units)}")
    value = float(found[1]) * units[found[2]]
    if not math.isfinite(value) or value <= 0:
        raise ScenarioError(f"{where}: {text!r} is not more than nothing")
    return value


def _number(value, least, most, where):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ScenarioError(f"{where}: {value!r} is not a number from {least} to {most}")
    return value


def _hosts(table, links, where):
    hosts = {}
    if not table or len(table) > 200:
        raise ScenarioError(f"{where}: 1 to 200 hosts are needed, not {len(table)}")
    for name, entry in table.items():
        at = f"{where}, host {name}"
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,30}", name) or name == "all":
            raise ScenarioError(f"{at}: a name is up to 31 letters and digits, other than 'all' and 'latency'")
        _only(entry, ("devices", "speed"), at)
        speed = links.get(name, links.get("all"))
        hosts[name] = Host(int(_number(entry.get("devices", 1), 1, 64, at + ", devices")), float(_number(entry.get("speed", 1), 0.1, 1, at + ", speed")),
                           quantity(speed, BITS, f"{where}, links") if speed else 0)
    return hosts


def _check_who(what, who, hosts, where):
    if what in ("kill", "stop", "continue", "notice", "pace"):
        name, _, device = str(who).partition("/")
        if name in hosts and (not device or (device.isdigit() and int(device) < hosts[name].devices)):
            return
        raise ScenarioError(f"{where}: {what} = {who!r} is neither a host nor a device such as \"{next(iter(hosts))}/0\"")
    if what in ("fill_disk", "free_disk"):
        if who is not True:
            raise ScenarioError(f"{where}: {what} is true or left out")
        return
    names = str(who).split("-")
    if not all(name in hosts for name in names) or len(names) > (1 if what in ("slow", "join") else 2):
        raise ScenarioError(f"{where}: {what} = {who!r} does not name hosts of the scenario ({', '.join(hosts)})")


def _event(table, hosts, where):
    _only(table, (*WHENS, *ACTIONS, "delay", "to"), where)
    whens, whats = [key for key in WHENS if key in table], [key for key in ACTIONS if key in table]
    if len(whens) != 1 or len(whats) != 1:
        raise ScenarioError(f"{where}: needs one of {', '.join(WHENS)} and one of {', '.join(ACTIONS)}")
    when, what = whens[0], whats[0]
    if when == "after":
        moment = quantity(table[when], SECONDS, f"{where}, after")
    elif when == "at_start":
        if table[when] is not True:
            raise ScenarioError(f"{where}: at_start is true or left out")
        moment = 0
    else:
        moment = _number(table[when], 0, 1e6, f"{where}, {when}")
    _check_who(what, table[what], hosts, where)
    if (what in ("slow", "pace")) != ("to" in table):
        raise ScenarioError(f"{where}: 'slow' or 'pace', and 'to' belong together: slow = \"host2\", to = \"100 Mbit\"; pace = \"host2/0\", to = 0.2")
    delay = quantity(table["delay"], SECONDS, f"{where}, delay") if "delay" in table else 0
    to = quantity(table["to"], BITS, f"{where}, to") if what == "slow" else _number(table["to"], 0.1, 1, f"{where}, to") if what == "pace" else 0
    return Event(when, moment, delay, what, table[what], to)


def _expected(table, where):
    fields = [field.name for field in dataclasses.fields(Expected)]
    _only(table, fields, where)
    expected = Expected(**{key: value for key, value in table.items() if key not in ("within", "says", "prints")})
    for key in ("says", "prints"):
        texts = table.get(key, [])
        setattr(expected, key, [texts] if isinstance(texts, str) else list(texts))
    if "within" in table:
        expected.within = quantity(table["within"], SECONDS, f"{where}, within")
    if expected.losses not in ("", "as one device"):
        raise ScenarioError(f"{where}: losses can be expected \"as one device\", not {expected.losses!r}")
    return expected


def _switch(entry, where):
    """"12: --pp 2 --dp 2": the plan that the run goes on with behind a step. --devices says how many ranks it uses."""
    found = re.fullmatch(r"\s*(\d+)\s*:(.*)", str(entry))
    words = found[2].split() if found else []
    if "--devices" not in words[:-1] or not words[words.index("--devices") + 1].isdigit():
        raise ScenarioError(f"{where}: {entry!r} is not \"STEP: --devices N WORDS\"")
    at = words.index("--devices")
    return int(found[1]), int(words[at + 1]), words[:at] + words[at + 2:]


def _run(table, hosts, where):
    _only(table, (*KINDS, "hosts", "event", "expect", "switch"), where)
    kinds = [key for key in KINDS if key in table]
    if len(kinds) != 1:
        raise ScenarioError(f"{where}: needs one of {', '.join(KINDS)}: words for the command line")
    names = table.get("hosts", list(hosts))
    for name in names:
        if name not in hosts:
            raise ScenarioError(f"{where}: {name!r} is no host of the scenario ({', '.join(hosts)})")
    events = [_event(entry, hosts, f"{where}, event {i + 1}") for i, entry in enumerate(table.get("event", []))]
    switches = [_switch(entry, f"{where}, switch {i + 1}") for i, entry in enumerate(table.get("switch", []))]
    if switches and kinds[0] == "measure":
        raise ScenarioError(f"{where}: measuring has no plan to switch")
    return Run(kinds[0], str(table[kinds[0]]).split(), names, events, _expected(table.get("expect", {}), f"{where}, expect"), switches)


def read_table(table, name):
    """A scenario from what a TOML or JSON file holds. Throws ScenarioError."""
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
        raise ScenarioError(f"{name}: documents is one or uneven, not {documents!r}")
    return Scenario(name, table.get("about", ""), _training(table.get("training", "")), hosts, latency, disk, runs, documents)


def _training(words):
    """On processors unless it names something else: a GPU of this machine has not the paces of the lab's devices."""
    return words.split() if "--device" in words.split() else [*words.split(), "--device", "cpu"]


def read_scenario(path):
    path = pathlib.Path(path)
    try:
        content = path.read_text()
        if path.suffix == ".json":
            table = json.loads(content)
        elif tomllib is None:
            raise ScenarioError(f"{path}: this Python reads scenarios as JSON only; 3.11 has TOML")
        else:
            table = tomllib.loads(content)
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: {error}") from error
    return read_table(table, path.stem)
