"""Tables of bench/dynamic, of plays that are there. Pure."""
import statistics

import dynamic_figures as figures
from dynamic_plays import START

WAYS = ("undisturbed", "kept", "best", "fsdp2", "rule", "learned", "watched", "oracle")
HEADER = ("| scenario | rounds | " + " | ".join(WAYS) + " | won back by rule | by learned | rule: less than kept | than the best static plan | that is | than FSDP2 | learned: less than rule | predicted, realised |\n|"
          + "---|" * (len(WAYS) + 10))


def rounds_of(known, scenario):
    """Where the start plan is the best one, its plays are the best's."""
    rounds = known.rounds(scenario)
    return [one | ({"best": one["kept"]} if best_name(known, scenario) == START and "kept" in one else {}) for one in rounds]


def best_name(known, scenario):
    return known.best(scenario)[1] if known.has_looked(scenario) else None


def middle(rounds, way):
    """"31.7 s", and of how many rounds where not of all."""
    found = [one[way] for one in rounds if way in one]
    if not found:
        return "–"
    spared = f", {statistics.median(map(figures.without_imports, found)):.1f} s without imports" if any(map(figures.import_seconds, found)) else ""
    return f"{statistics.median(one.seconds for one in found):.1f} s{spared}" + (f" ({len(found)})" if len(found) < len(rounds) else "")


def less_than_peer(rounds):
    ratios, spared = figures.ratios(rounds, "rule", "fsdp2"), figures.ratios(rounds, "rule", "fsdp2", figures.without_imports)
    return figures.with_interval(ratios) + (f", without imports {figures.with_interval(spared)}" if spared != ratios else "")


def switch_lines(rounds):
    """What the plays' n-th changes of plan promised and kept, in the middle."""
    told = [figures.gains([one["rule"]]) for one in rounds if "rule" in one]
    nth = [[gains[i] for gains in told if len(gains) > i] for i in range(max(map(len, told), default=0))]
    usual = [found for found in nth if 2 * len(found) > len(told)]  # the changes of most plays
    return "; ".join(", ".join(f"{100 * statistics.median(values):+.0f} %" for values in zip(*found)) for found in usual) or "–"


def row(known, scenario):
    rounds = rounds_of(known, scenario)
    won = [figures.with_interval(figures.won_back(rounds, way)) for way in ("rule", "learned")]
    cells = [scenario.removeprefix("decide_").replace("_", " "), str(len(rounds)), *(middle(rounds, way) for way in WAYS), *won,
             figures.with_interval(figures.ratios(rounds, "rule", "kept")), figures.with_interval(figures.ratios(rounds, "rule", "best")), best_name(known, scenario) or "–",
             less_than_peer(rounds), figures.with_interval(figures.ratios(rounds, "learned", "rule")), switch_lines(rounds)]
    return "| " + " | ".join(cells) + " |"


def of_scenario(known, scenario):
    return f"{HEADER}\n{row(known, scenario)}"


def gain_lines(known, policy="rule"):
    pairs = figures.gains([one[policy] for name in known.scenarios() for one in known.rounds(name) if policy in one])
    if not pairs:
        return f"{policy}: no gain was measured"
    bias = statistics.median(realised - predicted for predicted, realised in pairs)
    correlation = figures.rank_correlation(*zip(*pairs))
    return (f"{policy}: {len(pairs)} changes whose gain is known, predicted and realised: rank correlation {'–' if correlation is None else f'{correlation:.2f}'}, "
            f"realised less predicted in the median {figures.percent(bias)}")


def change_lines(known, policy="rule"):
    plays = [one[policy] for name in known.scenarios() for one in known.rounds(name) if policy in one]
    return f"{policy}: {sum(line['kind'] == 'switch' for one in plays for line in one.decisions)} changes of plan in {sum(one.steps for one in plays)} steps"


def all_of(known):
    rows = [row(known, name) for name in known.scenarios()]
    return "\n".join([HEADER, *rows, "", gain_lines(known), gain_lines(known, "learned"), change_lines(known)])


def short(known):
    """Of each scenario the seconds by ways and rounds, and what rule's changes promised and kept."""
    told = []
    for name in known.scenarios():
        rounds = known.rounds(name)
        by_way = {way: [round(one[way].seconds, 2) for one in rounds if way in one] for way in sorted({way for one in rounds for way in one})}
        gains = [[round(value, 3) for value in pair] for pair in figures.gains([one["rule"] for one in rounds if "rule" in one])]
        best = best_name(known, name)
        told.append({"scenario": name.removeprefix("decide_"), "measured": known.measured[name], "seconds": by_way, "rule_gains": gains} | ({"best_is": best} if best else {}))
    return told
