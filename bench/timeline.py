#!/usr/bin/env python3
"""Draws the steps that `optimus train --profile FILE` has recorded in RUN/profile, one row per rank: what each rank computed when.

usage: timeline.py RUN [--width 100] [--step N]     N: which of the profiled steps, from 0

A column is a fraction of the step. Digits are the micro-batch whose forward took most of it, lower-case letters (a is 0) whose backward
did, capitals whose weight gradient did if it is a separate instruction; u is the optimizer, . idle. """
import argparse
import json
import pathlib


def letter_of(name):
    """Returns the letter of a compute instruction from its name in the profile: "forward 3.attention, micro-batch 1"."""
    number = int(name.rpartition("micro-batch ")[2].split(",")[0]) if "micro-batch" in name else 0
    if name.startswith("optimizer"):
        return "u"
    if name.startswith(("forward", "recompute")):
        return str(number % 10)
    letter = chr(ord("a") + number % 26)
    return letter.upper() if name.startswith("backward_weight") else letter


def row_of(rank, step, width):
    begin, end = step["start"], step["end"]
    time = [dict() for _ in range(width)]
    for one in rank["instructions"]:
        if one["lane"] != "compute" or one["end"] <= begin or one["start"] >= end:
            continue
        first, last = ((one[key] - begin) / (end - begin) * width for key in ("start", "end"))
        for column in range(max(0, int(first)), min(width, int(last) + 1)):
            share = min(last, column + 1) - max(first, column)
            sign = letter_of(one["name"])
            time[column][sign] = time[column].get(sign, 0) + share
    return "".join(max(seen, key=seen.get) if sum(seen.values()) >= 0.5 else "." for seen in time)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--step", type=int, default=1)
    options = parser.parse_args()
    ranks = [json.loads(path.read_text()) for path in (options.run / "profile").glob("rank-*.json")]
    for rank in sorted(ranks, key=lambda rank: rank["rank"]):
        print(f"rank {rank['rank']:2} stage {rank['stage']}  {row_of(rank, rank['steps'][options.step], options.width)}")


if __name__ == "__main__":
    main()
