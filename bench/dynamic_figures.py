"""Statistics of bench/dynamic: medians with intervals, recovered shares, rank correlation. Pure functions."""
import math
import random
import statistics


def interval(values, part=0.95, draws=2000):
    """Returns the confidence interval of the median by bootstrap; for a single value, that value twice."""
    generator = random.Random(1)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(draws))
    out = (1 - part) / 2
    return medians[int(out * draws)], medians[min(draws - 1, int((1 - out) * draws))]


def ratios(results, variant, against, seconds_of=lambda entry: entry.seconds):
    """Returns for each round how much less time the variant takes, as a fraction of the other variant's time."""
    return [1 - entry[variant].seconds / seconds_of(entry[against]) for entry in results if variant in entry and against in entry]


def import_seconds(entry):
    """Returns the import time of FSDP2's workers over all restarts. Starts before the first step are not measured."""
    first = next((row["at"] for row in entry.starts if row["kind"] == "first_step"), math.inf)
    return sum(row["import_seconds"] for row in entry.starts if row["kind"] == "start" and row["began"] > first)


def without_imports(entry):
    return entry.seconds - import_seconds(entry)


def recovered(results, variant="rule"):
    """Returns for each round the fraction of the conditions' cost that adaptation has recovered; omits rounds that lack a variant."""
    complete = [entry for entry in results if {variant, "static", "undisturbed"} <= entry.keys()]
    return [(entry["static"].seconds - entry[variant].seconds) / (entry["static"].seconds - entry["undisturbed"].seconds)
            for entry in complete if entry["static"].seconds > 1.02 * entry["undisturbed"].seconds]


def ranks(values):
    """Returns the ranks of the values; equal values share their mean rank."""
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
    """Returns Spearman's rank correlation; None for fewer than three pairs or if one side is constant."""
    if len(first) < 3:
        return None
    a, b = ranks(first), ranks(second)
    mean_a, mean_b = statistics.fmean(a), statistics.fmean(b)
    numerator = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b))
    denominator = math.sqrt(sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b))
    return numerator / denominator if denominator > 0 else None


def gains(results):
    """Returns (predicted, measured) gains of all switches whose measured gain is known."""
    found = []
    for entry in results:
        realised = {line["epoch"]: line["realised_gain"] for line in entry.decisions if line["kind"] == "realised"}
        for line in entry.decisions:
            if line["kind"] == "switch" and line.get("predicted_gain") is not None and realised.get(line["epoch"]) is not None:
                found.append((line["predicted_gain"], realised[line["epoch"]]))
    return found


def percent(value):
    return f"{100 * value:+.1f} %"


def with_interval(values):
    """Formats median and interval: "+31.2 % (+28.0 % to +33.9 %)"; "–" without values."""
    if not values:
        return "–"
    low, high = interval(values)
    return f"{percent(statistics.median(values))} ({percent(low)} to {percent(high)})"
