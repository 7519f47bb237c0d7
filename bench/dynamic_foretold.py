"""What happens to a scenario's machines, as the policy oracle is told of it (docs/use/formats.md, optimus-conditions). Pure."""
LONGEST = 36_000  # seconds; a condition that does not end


def devices_of(one, who):
    """(cause, number) of a device, or of a host with several."""
    host, _, device = who.partition("/")
    names = list(one.hosts)
    first = sum(one.hosts[name].devices for name in names[:names.index(host)])
    if device or one.hosts[host].devices == 1:
        return "device", first + int(device or 0)
    return "host", names.index(host)


def moments(one, step_seconds):
    """Seconds from the first step's begin at which each event comes, where steps take as long as these."""
    at = 0.0
    for event in one.runs[0].events:
        if event.when == "at_step":
            at = sum(step_seconds[:int(event.moment)])
        elif event.when == "after":
            at += event.moment
        else:
            raise ValueError(f"an event {event.when.replace('_', ' ')} cannot be foretold")
        yield at, event


def time_line(one, step_seconds):
    """Losses and returns are not told: they are nothing that a plan could answer beforehand."""
    open_ones, told = {}, []
    for at, event in moments(one, step_seconds):
        if event.what == "pace":
            key, factor = devices_of(one, event.who), one.hosts[event.who.split("/")[0]].speed / event.to
        elif event.what in ("slow", "heal"):
            key = ("link", list(one.hosts).index(event.who))
            factor = one.hosts[event.who].bits_per_second / event.to if event.what == "slow" else 1
        else:
            continue
        if key in open_ones:
            before, begin = open_ones.pop(key)
            told.append((key, before, begin, at - begin))
        if factor > 1:
            open_ones[key] = (factor, at)
    told += [(key, factor, begin, LONGEST - begin) for key, (factor, begin) in open_ones.items()]
    return {"format": "optimus-conditions", "version": 1, "length": LONGEST,
            "conditions": [{"cause": cause, "where": where, "factor": factor, "at": begin, "for": length} for (cause, where), factor, begin, length in sorted(told, key=lambda line: line[2])]}
