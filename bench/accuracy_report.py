#!/usr/bin/env python3
"""Regenerates the figures of docs/understand/cost-model.md and docs/results/accuracy.md: python3 bench/accuracy_report.py OPTIMUS
BENCH_FIT_LOG.
OPTIMUS is the binary; the log is the output of bench_fit (for values next to their priors). Also draws docs/pictures/accuracy.svg."""
import json
import math
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
optimus, log = sys.argv[1], pathlib.Path(sys.argv[2]).read_text()
report = json.loads(subprocess.run([optimus, "simulate", "--runs", ROOT / "bench/data/published_runs.csv", "--json"],
                                   capture_output=True, text=True, check=True).stdout)


def percent(fraction):
    return f"{100 * fraction:.1f} %"


constants = ["| constant | value | prior | meaning |", "|---|---|---|---|"]
for name, value, prior, meaning in re.findall(r"^(\S+)\s+(\S+)\s+prior\s+(\S+)\s+(.+)$", log, re.M):
    constants.append(f"| `{name}` | {value} | {prior} | {meaning} |")

total = report["summary"]
lines = ["| | mean error | worst | runs |", "|---|---|---|---|"]
for title, key in (("step time", "step_time"), ("step time, source left out", "left_out_source"), ("memory", "memory")):
    lines.append(f"| {title} | {percent(total[key]['mape'])} | {percent(total[key]['worst'])} | {total[key]['rows']} |")
lines.append("")
lines.append(f"Order: {percent(total['pairs_ordered'])} of {total['pairs']} pairs of layouts in {total['rank_correlation']['sweeps']} sweeps "
             f"whose times differ by more than 5 % are ordered correctly; median rank correlation {total['rank_correlation']['median']:.2f}. "
             f"{total['skipped']} rows are not judged, {total['mixtures_of_experts']['rows']} of them mixtures of experts.")
mixtures = total["mixtures_of_experts"]
lines += ["", f"Mixtures of experts, separately, nothing fitted on them: {percent(mixtures['mape'])} over {mixtures['predicted']} of {mixtures['rows']} runs "
          f"(worst {percent(mixtures['worst'])}), memory {percent(mixtures['memory']['mape'])} over {mixtures['memory']['rows']}."]
for title, key in (("source", "sources"), ("software", "software")):
    lines += ["", f"| {title} | runs | step time | left out | memory |", "|---|---|---|---|---|"]
    for name, group in sorted(report[key].items()):
        memory = group["memory"]
        lines.append(f"| {name} | {group['step_time']['rows']} | {percent(group['step_time']['mape'])} | "
                     f"{percent(group['left_out_source']['mape'])} | {percent(memory['mape']) if memory['rows'] else ''} |")


def between(text, name, body):
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    block = f"{begin}\n{body}\n{end}"
    if f"@{name.upper()}@" in text:
        return text.replace(f"@{name.upper()}@", block)
    return re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: block, text, flags=re.S)


constants_page, accuracy_page = ROOT / "docs/understand/cost-model.md", ROOT / "docs/results/accuracy.md"
constants_page.write_text(between(constants_page.read_text(), "constants", "\n".join(constants)))
accuracy_page.write_text(between(accuracy_page.read_text(), "accuracy", "\n".join(lines)))

COLOURS = "#1f77b4 #ff7f0e #2ca02c #d62728 #9467bd #8c564b #e377c2 #7f7f7f #bcbd22 #17becf #393b79 #637939 #8c6d31 #843c39".split()
rows = [r for r in report["rows"] if r["predicted_seconds"] and not r["skipped"]]
origins = sorted({r["source"] for r in rows})
low, high, size, left = math.log10(0.1), math.log10(1000), 480, 50


def pixel_of(seconds):
    return (math.log10(seconds) - low) / (high - low) * size


svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{size + 190}" height="{size + 60}" font-family="sans-serif" font-size="12">',
       f'<rect width="{size + 190}" height="{size + 60}" fill="white"/>',
       f'<g transform="translate({left},10)"><rect width="{size}" height="{size}" fill="none" stroke="#888"/>']
for decade in range(-1, 4):
    at = pixel_of(10.0 ** decade)
    svg.append(f'<text x="{at:.1f}" y="{size + 16}" text-anchor="middle">{10.0 ** decade:g}</text>'
               f'<text x="-6" y="{size - at + 4:.1f}" text-anchor="end">{10.0 ** decade:g}</text>')
for factor, dash in ((1, ""), (0.9, "4 4"), (1.1, "4 4")):
    shift = math.log10(factor) / (high - low) * size
    svg.append(f'<path d="M{max(0, -shift):.1f} {size - max(0, shift):.1f} L{min(size, size - shift):.1f} {max(0, -shift):.1f}" stroke="#bbb" '
               f'stroke-dasharray="{dash}" fill="none"/>')
for row in rows:
    colour = COLOURS[origins.index(row["source"]) % len(COLOURS)]
    svg.append(f'<circle cx="{pixel_of(row["measured_seconds"]):.1f}" cy="{size - pixel_of(row["predicted_seconds"]):.1f}" r="2.2" fill="{colour}" '
               'fill-opacity="0.7"/>')
for i, origin in enumerate(origins):
    svg.append(f'<circle cx="{size + 16}" cy="{16 + 18 * i}" r="4" fill="{COLOURS[i % len(COLOURS)]}"/>'
               f'<text x="{size + 26}" y="{20 + 18 * i}">{origin}</text>')
svg.append(f'<text x="{size / 2}" y="{size + 36}" text-anchor="middle">measured seconds per step (lines: equal, and 10 % off)</text>'
           f'<text transform="translate(-38,{size / 2}) rotate(-90)" text-anchor="middle">predicted</text></g></svg>')
(ROOT / "docs/pictures/accuracy.svg").write_text("\n".join(svg) + "\n")
