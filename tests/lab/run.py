#!/usr/bin/env python3
"""Runs training scenarios on emulated clusters: run.py SCENARIO… runs scenario files (default: all of tests/lab/scenarios).

  --list      lists the scenarios
  --keep DIR  copies logs and run folders to DIR
  --random N  instead: N random faults (kill, stop, cut, full disk at random instants); --seed S repeats them
  --survive N instead: N random sequences of faults that the run must survive; --seed S repeats them
  --switches N  instead: N random sequences of plan changes; --seed S repeats them
  --clear     removes what killed labs have left, and exits

Needs Linux, root, iproute2, Python 3.10 and $OPTIMUS (default: build/test/optimus). Exit code 0: all scenarios passed, or this machine
cannot run a lab (one line with the reason); 1: a scenario failed; 2: usage error. docs/results/lab.md explains scenarios."""
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


def log(text):
    print(text, file=sys.stderr, flush=True)


def run_scenario(one, keep, baselines):
    log(f"== {one.name}: {one.about}")
    start_time = time.monotonic()
    try:
        training.run_scenario(one, lambda text: log("  " + text), keep / one.name if keep else None, baselines)
    except cluster.Unavailable as error:
        log(f"skip {one.name}: {error}")
        return True
    except training.Failed as failed:
        log(f"FAIL {one.name} ({time.monotonic() - start_time:.0f} s): {failed}")
        return False
    log(f"pass {one.name} ({time.monotonic() - start_time:.0f} s)")
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


def chosen(args):
    """Returns the files of the arguments: paths, or names of shipped scenarios."""
    if not args:
        return sorted(FOLDER.glob("*.toml"))
    return [path if path.exists() else FOLDER / f"{path}.toml" for path in map(pathlib.Path, args)]


def main():
    options = parse()
    if options.h or options.help:
        print(__doc__)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.clear:
        log(f"removed the files and control groups of labs {cluster.clear_leftovers()}")
        return 0
    try:
        counts = {faults.random_scenario: options.random, faults.random_survival: options.survive, switches.random_scenario: options.switches}
        if any(count is not None for count in counts.values()):
            seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
            scenarios = [make(seed + i) for make, count in counts.items() for i in range(count or 0)]
        else:
            scenarios = [scenario.read_scenario(path) for path in chosen(options.scenarios)]
        if options.list:
            for one in scenarios:
                print(f"{one.name:<20} {one.about}")
            return 0
        if not pathlib.Path(training.binary()).exists():
            raise scenario.ScenarioError(f"{training.binary()} does not exist; build it, or set OPTIMUS to another program")
        cluster.check_available()
    except scenario.ScenarioError as error:
        log(f"lab: {error}")
        return 2
    except cluster.Unavailable as error:
        log(f"skip: this machine cannot run a lab: {error}")
        return 0
    baselines = {}
    failed = [one.name for one in scenarios if not run_scenario(one, options.keep, baselines)]
    log(f"{len(scenarios) - len(failed)} of {len(scenarios)} passed" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
