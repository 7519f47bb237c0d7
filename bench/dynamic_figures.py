"""Figures of bench/dynamic: medians with intervals, shares that were won back, rank correlation. Pure."""
import math
import random
import statistics


def interval(values, part=0.95, draws=2000):
    """Of the median, by drawing again (bootstrap); of one value that value."""
    dice = random.Random(1)
    medians = sorted(statistics.median(dice.choices(values, k=len(values))) for _ in range(draws))
    out = (1 - part) / 2
    return medians[int(out * draws)], medians[min(draws - 1, int((1 - out) * draws))]


def ratios(results, way, against, seconds_of=lambda one: one.seconds):
    """Of each round: less time than the other, as a part of the other's."""
    return [1 - one[way].seconds / seconds_of(one[against]) for one in results if way in one and against in one]


def import_seconds(one):
    """Of FSDP2's workers, each time that they were started again; before the first step nothing is measured."""
    first = next((row["at"] for row in one.starts if row["kind"] == "first_step"), math.inf)
    return sum(row["import_seconds"] for row in one.starts if row["kind"] == "start" and row["began"] > first)


def without_imports(one):
    return one.seconds - import_seconds(one)


def won_back(results, way="rule"):
    """Of what the condition costs the start plan, the part that deciding has won back, by rounds; without rounds that lack a way."""
    whole = [one for one in results if {way, "kept", "undisturbed"} <= one.keys()]
    return [(one["kept"].seconds - one[way].seconds) / (one["kept"].seconds - one["undisturbed"].seconds)
            for one in whole if one["kept"].seconds > 1.02 * one["undisturbed"].seconds]


def ranks(values):
    """Places in order; equals share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    places = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for i in range(at, end + 1):
            places[order[i]] = (at + end) / 2
        at = end + 1
    return places


def rank_correlation(first, second):
    """Spearman's; none for fewer than three pairs or where one side is all the same."""
    if len(first) < 3:
        return None
    a, b = ranks(first), ranks(second)
    mean_a, mean_b = statistics.fmean(a), statistics.fmean(b)
    over = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b))
    under = math.sqrt(sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b))
    return over / under if under > 0 else None


def gains(results):
    """(predicted, realised) of every switch whose gain is known."""
    found = []
    for one in results:
        realised = {line["epoch"]: line["realised_gain"] for line in one.decisions if line["kind"] == "realised"}
        for line in one.decisions:
            if line["kind"] == "switch" and line.get("predicted_gain") is not None and realised.get(line["epoch"]) is not None:
                found.append((line["predicted_gain"], realised[line["epoch"]]))
    return found


def percent(value):
    return f"{100 * value:+.1f} %"


def with_interval(values):
    """"+31.2 % (+28.0 % to +33.9 %)"; nothing where there are none."""
    if not values:
        return "–"
    low, high = interval(values)
    return f"{percent(statistics.median(values))} ({percent(low)} to {percent(high)})"
