#!/usr/bin/env python3
"""Trainings on emulated clusters: run.py SCENARIO… plays scenario files (default: all of tests/lab/scenarios).

  --list      what there is
  --keep DIR  logs and run folders are copied there
  --random N  instead: N random faults (kill, stop, cut, full disk at random instants); --seed S repeats them
  --survive N instead: N random sequences of faults that the run goes on through; --seed S repeats them
  --switches N  instead: N random sequences of changes of plan; --seed S repeats them
  --clear     removes what killed labs have left, and does nothing else

Needs Linux, root, iproute2, Python 3.10 and $OPTIMUS (default: build/test/optimus). Exit 0: all as expected, or this machine cannot have a lab
(one line says why); 1: not as expected; 2: wrong usage. docs/results/lab.md explains scenarios."""
import argparse
import pathlib
import random
import signal
import sys
import time

import cluster
import faults
import scenario
import switches
import training

FOLDER = pathlib.Path(__file__).resolve().parent / "scenarios"


def say(text):
    print(text, file=sys.stderr, flush=True)


def play(one, keep, alone):
    say(f"== {one.name}: {one.about}")
    began = time.monotonic()
    try:
        training.play(one, lambda text: say("  " + text), keep / one.name if keep else None, alone)
    except cluster.Unavailable as why:
        say(f"skip {one.name}: {why}")
        return True
    except training.Failed as failed:
        say(f"FAIL {one.name} ({time.monotonic() - began:.0f} s): {failed}")
        return False
    say(f"pass {one.name} ({time.monotonic() - began:.0f} s)")
    return True


def parse():
    parser = argparse.ArgumentParser(usage=__doc__.replace("%", "%%"), add_help=False)
    parser.add_argument("scenarios", nargs="*")
    for flag in ("--list", "--clear", "-h", "--help"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--random", type=int)
    parser.add_argument("--survive", type=int)
    parser.add_argument("--switches", type=int)
    parser.add_argument("--seed", type=int)
    return parser.parse_args()


def chosen(words):
    """Files, or names of shipped scenarios."""
    if not words:
        return sorted(FOLDER.glob("*.toml"))
    return [path if path.exists() else FOLDER / f"{path}.toml" for path in map(pathlib.Path, words)]


def main():
    asked = parse()
    if asked.h or asked.help:
        print(__doc__)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if asked.clear:
        say(f"removed what labs {cluster.clear_leftovers()} have left")
        return 0
    try:
        counts = {faults.random_scenario: asked.random, faults.random_survival: asked.survive, switches.random_scenario: asked.switches}
        if any(count is not None for count in counts.values()):
            seed = random.SystemRandom().randrange(1 << 31) if asked.seed is None else asked.seed
            scenarios = [make(seed + i) for make, count in counts.items() for i in range(count or 0)]
        else:
            scenarios = [scenario.read_scenario(path) for path in chosen(asked.scenarios)]
        if asked.list:
            for one in scenarios:
                print(f"{one.name:<20} {one.about}")
            return 0
        if not pathlib.Path(training.binary()).exists():
            raise scenario.ScenarioError(f"{training.binary()} is not built; $OPTIMUS can name another")
        cluster.check_available()
    except scenario.ScenarioError as error:
        say(f"lab: {error}")
        return 2
    except cluster.Unavailable as why:
        say(f"skip: this machine cannot have a lab: {why}")
        return 0
    alone = {}
    failed = [one.name for one in scenarios if not play(one, asked.keep, alone)]
    say(f"{len(scenarios) - len(failed)} of {len(scenarios)} as expected" + (f"; not so: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
