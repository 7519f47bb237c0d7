"""Tables of bench/dynamic from existing results. Pure functions."""
import statistics

import dynamic_figures as figures
from dynamic_results import START

VARIANTS = ("undisturbed", "static", "best", "fsdp2", "rule", "learned", "never", "oracle")
HEADER = ("| scenario | rounds | " + " | ".join(VARIANTS) + " | recovered by rule | by learned | rule: less time than static | than the best static plan | best static plan | than FSDP2 | learned: less time than rule | predicted, measured gains |\n|"
          + "---|" * (len(VARIANTS) + 10))


def rounds_of(results, scenario):
    """Returns the rounds. If the start plan is the best static plan, its results are also those of the variant best."""
    rounds = results.rounds(scenario)
    return [entry | ({"best": entry["static"]} if best_name(results, scenario) == START and "static" in entry else {}) for entry in rounds]


def best_name(results, scenario):
    return results.best(scenario)[1] if results.has_searched(scenario) else None


def median_text(rounds, variant):
    """Formats the median, such as "31.7 s", with the number of rounds if some lack this variant."""
    found = [entry[variant] for entry in rounds if variant in entry]
    if not found:
        return "–"
    without_imports_text = f", {statistics.median(map(figures.without_imports, found)):.1f} s without imports" if any(map(figures.import_seconds, found)) else ""
    return f"{statistics.median(entry.seconds for entry in found):.1f} s{without_imports_text}" + (f" ({len(found)})" if len(found) < len(rounds) else "")


def less_than_peer(rounds):
    ratios, without_imports_text = figures.ratios(rounds, "rule", "fsdp2"), figures.ratios(rounds, "rule", "fsdp2", figures.without_imports)
    return figures.with_interval(ratios) + (f", without imports {figures.with_interval(without_imports_text)}" if without_imports_text != ratios else "")


def switch_lines(rounds):
    """Formats the median predicted and measured gain of the n-th plan change over the runs."""
    lines = [figures.gains([entry["rule"]]) for entry in rounds if "rule" in entry]
    nth = [[gains[i] for gains in lines if len(gains) > i] for i in range(max(map(len, lines), default=0))]
    usual = [found for found in nth if 2 * len(found) > len(lines)]  # plan changes that most runs made
    return "; ".join(", ".join(f"{100 * statistics.median(values):+.0f} %" for values in zip(*found)) for found in usual) or "–"


def row(results, scenario):
    rounds = rounds_of(results, scenario)
    won = [figures.with_interval(figures.recovered(rounds, variant)) for variant in ("rule", "learned")]
    cells = [scenario.removeprefix("decide_").replace("_", " "), str(len(rounds)), *(median_text(rounds, variant) for variant in VARIANTS), *won,
             figures.with_interval(figures.ratios(rounds, "rule", "static")), figures.with_interval(figures.ratios(rounds, "rule",
             "best")), best_name(results, scenario) or "–",
             less_than_peer(rounds), figures.with_interval(figures.ratios(rounds, "learned", "rule")), switch_lines(rounds)]
    return "| " + " | ".join(cells) + " |"


def scenario_table(results, scenario):
    return f"{HEADER}\n{row(results, scenario)}"


def gain_lines(results, policy="rule"):
    pairs = figures.gains([entry[policy] for name in results.scenarios() for entry in results.rounds(name) if policy in entry])
    if not pairs:
        return f"{policy}: no gain was measured"
    bias = statistics.median(realised - predicted for predicted, realised in pairs)
    correlation = figures.rank_correlation(*zip(*pairs))
    return (f"{policy}: {len(pairs)} plan changes with a measured gain; predicted and measured: rank correlation {'–' if correlation is None else f'{correlation:.2f}'}, "
            f"median of measured minus predicted {figures.percent(bias)}")


def change_lines(results, policy="rule"):
    runs = [entry[policy] for name in results.scenarios() for entry in results.rounds(name) if policy in entry]
    return f"{policy}: {sum(line['kind'] == 'switch' for entry in runs for line in entry.decisions)} plan changes in {sum(entry.steps for entry in runs)} steps"


def all_tables(results):
    rows = [row(results, name) for name in results.scenarios()]
    return "\n".join([HEADER, *rows, "", gain_lines(results), gain_lines(results, "learned"), change_lines(results)])


def short(results):
    """Returns for each scenario the seconds by variant and round, and the predicted and measured gains of rule's plan changes."""
    lines = []
    for name in results.scenarios():
        rounds = results.rounds(name)
        by_way = {variant: [round(entry[variant].seconds, 2) for entry in rounds if variant in entry] for variant in sorted({variant for entry in rounds for variant in entry})}
        gains = [[round(value, 3) for value in pair] for pair in figures.gains([entry["rule"] for entry in rounds if "rule" in entry])]
        best = best_name(results, name)
        lines.append({"scenario": name.removeprefix("decide_"), "measured": results.measured[name], "seconds": by_way, "rule_gains": gains} | ({"best_is": best} if best else {}))
    return lines
