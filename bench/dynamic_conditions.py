"""Writes the conditions of a scenario for the policy oracle (docs/use/formats.md, optimus-conditions). Pure functions."""
LONGEST = 36_000  # seconds; the length of a condition that does not end


def devices_of(spec, target):
    """Returns (cause, number) of a device, or of a host with several devices."""
    host, _, device = target.partition("/")
    names = list(spec.hosts)
    first = sum(spec.hosts[name].devices for name in names[:names.index(host)])
    if device or spec.hosts[host].devices == 1:
        return "device", first + int(device or 0)
    return "host", names.index(host)


def moments(spec, step_seconds):
    """Yields (seconds from the beginning of the first step, event) for steps with these durations."""
    at = 0.0
    for event in spec.runs[0].events:
        if event.when == "at_step":
            at = sum(step_seconds[:int(event.moment)])
        elif event.when == "after":
            at += event.moment
        else:
            raise ValueError(f"an event {event.when.replace('_', ' ')} has no time that is known in advance")
        yield at, event


def time_line(spec, step_seconds):
    """Returns the conditions. Lost and returning hosts are omitted: no plan can respond to them in advance."""
    active, conditions = {}, []
    for at, event in moments(spec, step_seconds):
        if event.what == "pace":
            key, factor = devices_of(spec, event.target), spec.hosts[event.target.split("/")[0]].speed / event.to
        elif event.what in ("slow", "heal"):
            key = ("link", list(spec.hosts).index(event.target))
            factor = spec.hosts[event.target].bits_per_second / event.to if event.what == "slow" else 1
        else:
            continue
        if key in active:
            before, begin = active.pop(key)
            conditions.append((key, before, begin, at - begin))
        if factor > 1:
            active[key] = (factor, at)
    conditions += [(key, factor, begin, LONGEST - begin) for key, (factor, begin) in active.items()]
    return {"format": "optimus-conditions", "version": 1, "length": LONGEST,
            "conditions": [{"cause": cause, "where": where, "factor": factor, "at": begin, "for": length} for (cause, where), factor, begin, length in sorted(conditions, key=lambda line: line[2])]}
