"""The variants of a scenario in bench/dynamic: policies, static plans, and the candidates for the best static plan in hindsight."""
import json
import random
import subprocess

import dynamic_conditions as conditions
import dynamic_lab as lab
import dynamic_peer as peer

PLANNING_SECONDS = 60


def defaults(spec):
    """Returns the default variants. The quiet scenario has no events, so hindsight has no advantage there."""
    if is_quiet(spec):
        return ["rule", "never", "static"]
    disturbed = ["undisturbed"] if spec.runs[0].events else []
    return ["rule", "learned", "static", *disturbed, "best"] + (["fsdp2"] if peer.applies(spec) and peer.python() else [])


def is_quiet(spec):
    return spec.name == "decide_quiet"


def check(variants, spec, static_plans=None):
    """Throws training.Failed."""
    if "fsdp2" in variants and not peer.applies(spec):
        raise lab.training.Failed(f"{spec.name}: fsdp2 supports only start plans that consist of replicas")
    if "fsdp2" in variants and peer.python() is None:
        raise lab.training.Failed("fsdp2: no Python with torch was found; set OPTIMUS_PYTHON")
    if "best" in variants and "rule" not in variants:
        raise lab.training.Failed("best: the plans of rule are candidates; add rule to --variants")
    if "best" in variants and "static" not in variants and not static_plans:
        raise lab.training.Failed("best: the start plan is a candidate; add static to --variants, or restrict the candidates with --static-plans")


def scenario_of(spec, variant, folder, steps_of_undisturbed):
    """Returns the scenario of a variant other than best."""
    start = lab.args_of(spec)
    if variant == "static" or variant == "fsdp2":
        return lab.static_scenario(spec, start) if variant == "static" else spec
    if variant == "undisturbed":
        return lab.static_scenario(lab.undisturbed(spec), start)
    if variant == "never":
        return lab.with_args(spec, [*start, "--policy", "never"])
    if variant == "oracle":
        path = folder / "conditions.json"
        path.write_text(json.dumps(conditions.time_line(spec, steps_of_undisturbed())))
        return lab.with_args(spec, [*start, "--policy", "oracle", "--conditions", str(path)])
    return lab.with_args(spec, [*start, "--policy", variant])


def planned(spec, folder):
    """Yields plan files of the planner for this training on all devices: its best plan, pure plans, and all grids in random order. A name
    always belongs to the same plan, even if others were not found in time."""
    devices = sum(host.devices for host in spec.hosts.values())
    shape = [word for flag, value in zip(spec.training, spec.training[1:]) if flag in (*lab.training.PLAN_FLAGS, "--vocab") for word in (flag, value)]
    if "--vocab" not in shape:
        shape += ["--vocab", str(lab.training.BYTE_TOKENS)]
    pure = [["--dp", devices], ["--pp", devices], ["--tp", devices], ["--dp", devices, "--zero", 3]]
    grids = [["--pp", p, "--tp", t, "--dp", devices // p // t] for p in range(1, devices + 1) for t in range(1, devices + 1) if devices % (p * t) == 0]
    random.Random(1).shuffle(grids)
    files, known_plans = [], set()
    for number, args in enumerate([[], *pure, *grids]):
        path = folder / f"plan-{number}" / "plan.json"
        options = [lab.training.binary(), "plan", *shape, "--cluster", f"cpux{devices}", *map(str, args), "--export", "optimus", "--out", str(path.parent)]
        text = path.read_text() if plans_in_time(options) else None
        if text and text not in known_plans:
            known_plans.add(text)
            files.append(path)
    return files


def plans_in_time(options):
    try:
        return subprocess.run(options, stdin=subprocess.DEVNULL, capture_output=True, timeout=PLANNING_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def candidates(spec, rule_result, folder):
    """Yields (name, scenario) of static plans: the plans that rule chose, plans without the affected hosts, and the planner's plans."""
    for i, text in enumerate(dict.fromkeys(rule_result.plans[1:])):
        path = folder / f"ruled-{i}.json"
        path.write_text(text)
        yield f"rule's plan {i + 1}", lab.static_scenario(spec, ["--plan", str(path)])
    affected = [event.target.split("/")[0] for event in spec.runs[0].events if event.what in ("pace", "slow", "kill")]
    for name in dict.fromkeys(affected):
        left = [host for host in spec.hosts if host != name]
        devices = sum(spec.hosts[host].devices for host in left)
        yield f"without {name}", lab.static_scenario(spec, ["--devices", str(devices), "--dp", str(devices), "--zero", "0"], left)
    for path in planned(spec, folder):
        yield path.parent.name, lab.static_scenario(spec, ["--plan", str(path)])


def named(candidates, names):
    """Returns all candidates, or those with these names. Throws training.Failed."""
    candidates = list(candidates)
    unknown = [name for name in names or [] if name not in dict(candidates)]
    if unknown:
        raise lab.training.Failed(f"--static-plans: there is no static plan {unknown[0]!r}; available: {', '.join(name for name, _ in candidates)}")
    return [(name, static_spec) for name, static_spec in candidates if not names or name in names]
