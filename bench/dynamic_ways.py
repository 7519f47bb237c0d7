"""Ways to play a scenario of bench/dynamic: policies, plans that are kept, and the static plans among which the best in hindsight is looked for."""
import json
import random
import subprocess

import dynamic_foretold as foretold
import dynamic_lab as lab
import dynamic_peer as peer

PLANNING_SECONDS = 60


def usual(one):
    """What a scenario is played as unless told: where nothing happens there is nothing to know in hindsight."""
    if is_quiet(one):
        return ["rule", "watched", "kept"]
    disturbed = ["undisturbed"] if one.runs[0].events else []
    return ["rule", "learned", "kept", *disturbed, "best"] + (["fsdp2"] if peer.applies(one) and peer.python() else [])


def is_quiet(one):
    return one.name == "decide_quiet"


def check(ways, one, among=None):
    """Throws training.Failed."""
    if "fsdp2" in ways and not peer.applies(one):
        raise lab.training.Failed(f"{one.name}: fsdp2 is for start plans of copies alone")
    if "fsdp2" in ways and peer.python() is None:
        raise lab.training.Failed("fsdp2: there is no Python with torch; name one with $OPTIMUS_PYTHON")
    if "best" in ways and "rule" not in ways:
        raise lab.training.Failed("best: is looked for among rule's plans, too; name rule among the ways")
    if "best" in ways and "kept" not in ways and not among:
        raise lab.training.Failed("best: the start plan may be it; name kept among the ways, or with --among those that may be")


def scenario_of(one, way, folder, steps_of_undisturbed):
    """The scenario as it is played this way, but for the best."""
    start = lab.words_of(one)
    if way == "kept" or way == "fsdp2":
        return lab.kept(one, start) if way == "kept" else one
    if way == "undisturbed":
        return lab.kept(lab.undisturbed(one), start)
    if way == "watched":
        return lab.with_words(one, [*start, "--policy", "never"])
    if way == "oracle":
        path = folder / "foretold.json"
        path.write_text(json.dumps(foretold.time_line(one, steps_of_undisturbed())))
        return lab.with_words(one, [*start, "--policy", "oracle", "--conditions", str(path)])
    return lab.with_words(one, [*start, "--policy", way])


def planned(one, folder):
    """Plan files of the planner for this training on all devices: its best, pure ones, and all grids in a random order. A name is of the same plan each time, also where others were not found in time."""
    devices = sum(host.devices for host in one.hosts.values())
    shape = [word for flag, value in zip(one.training, one.training[1:]) if flag in (*lab.training.PLANNED, "--vocab") for word in (flag, value)]
    if "--vocab" not in shape:
        shape += ["--vocab", str(lab.training.BYTE_TOKENS)]
    pure = [["--dp", devices], ["--pp", devices], ["--tp", devices], ["--dp", devices, "--zero", 3]]
    grids = [["--pp", p, "--tp", t, "--dp", devices // p // t] for p in range(1, devices + 1) for t in range(1, devices + 1) if devices % (p * t) == 0]
    random.Random(1).shuffle(grids)
    files, seen = [], set()
    for number, words in enumerate([[], *pure, *grids]):
        path = folder / f"plan-{number}" / "plan.json"
        asked = [lab.training.binary(), "plan", *shape, "--cluster", f"cpux{devices}", *map(str, words), "--export", "optimus", "--out", str(path.parent)]
        text = path.read_text() if plans_in_time(asked) else None
        if text and text not in seen:
            seen.add(text)
            files.append(path)
    return files


def plans_in_time(asked):
    try:
        return subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, timeout=PLANNING_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def candidates(one, ruled, folder):
    """(name, scenario) of static plans: those that rule came to, without the hosts that something happens to, and the planner's."""
    for i, text in enumerate(dict.fromkeys(ruled.plans[1:])):
        path = folder / f"ruled-{i}.json"
        path.write_text(text)
        yield f"rule's plan {i + 1}", lab.kept(one, ["--plan", str(path)])
    hit = [event.who.split("/")[0] for event in one.runs[0].events if event.what in ("pace", "slow", "kill")]
    for name in dict.fromkeys(hit):
        left = [host for host in one.hosts if host != name]
        devices = sum(one.hosts[host].devices for host in left)
        yield f"without {name}", lab.kept(one, ["--devices", str(devices), "--dp", str(devices), "--zero", "0"], left)
    for path in planned(one, folder):
        yield path.parent.name, lab.kept(one, ["--plan", str(path)])


def named(candidates, names):
    """All of them, or those with these names. Throws training.Failed."""
    candidates = list(candidates)
    unknown = [name for name in names or [] if name not in dict(candidates)]
    if unknown:
        raise lab.training.Failed(f"--among: there is no static plan {unknown[0]!r}; there are {', '.join(name for name, _ in candidates)}")
    return [(name, kept) for name, kept in candidates if not names or name in names]
