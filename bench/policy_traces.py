#!/usr/bin/env python3
"""Every policy on every published trace of nodes, each trace complete, with `optimus simulate --failures`, for five training setups: mean
fractions of the oracle's useful tokens.

usage: bench/policy_traces.py TRACES [--optimus FILE] [--link BYTES] [--learned FILE] [--json FILE]

TRACES is a folder as for bench/policy. --link: bytes per second that a node receives while plans change, instead of the speed of the
cluster's links. Traces on which a model does not fit are listed and omitted. Takes two minutes on two cores."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
POLICIES = ["never", "always-best", "threshold", "lookahead", "malleus", "rule", "learned", "oracle"]
# Model, cluster, batch, sequence length, devices per node.
TRAININGS = [("gpt3-6.7b", "v100x32", 1024, 2048, 1), ("gpt3-1.3b", "a100x64", 512, 2048, 1), ("gpt3-350m", "v100x64", 1024, 512, 1), ("llama3-8b", "h100x256", 512, 4096, 8),
             ("gpt3-6.7b", "a100x256", 1024, 2048, 8)]
# One of Parcae's p3 traces is Bamboo's, and the periodic traces of Oobleck with periods of hours are alike.
TRACES = ["bamboo/p3-trace.csv", "bamboo/aws-spot-instances-g4dn-xlarge-us-east-1c-2020-11-20-1930-to-2020-11-21-2200.csv",
          "bamboo/aws-spot-instances-g4dn-xlarge-us-east-1d-2020-11-23-1730-to-2020-11-24-1530.csv", "bamboo/aws-spot-instances-p2-xlarge-2020-11-20-to-2020-11-23.csv", "bamboo/v100x1-east1c.txt",
          "oobleck/10m.csv", "oobleck/30m.csv", "oobleck/1h.csv", "oobleck/3h.csv", "oobleck/scale_p3-trace.csv", "sailor/a100_trace.json", "sailor/a100_trace_16.json",
          "tenplex/dynamic_resources_schedule.json", "infinitehbd/fault_trace.json"]


def replay(options, args, trace, training):
    """Returns useful tokens per second by policy, or the error."""
    model, cluster, batch, length, devices = training
    command = [options.optimus, "simulate", "--failures", options.traces / trace, "--policy", ",".join(POLICIES), "--model", model, "--cluster", cluster, "--batch", str(batch), "--seq", str(length),
               "--devices-per-node", str(devices), "--json", *args]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired as late:
        return str(late)
    if completed.returncode:
        return " ".join((completed.stdout + completed.stderr).split()) or f"exit {completed.returncode}"
    return {row["policy"]: row["useful_tokens_per_second"] for row in json.loads(completed.stdout)}


def of_oracle(rows, policy):
    return 100 * statistics.mean(speeds[policy] / speeds["oracle"] for speeds in rows)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].splitlines()[0])
    parser.add_argument("traces", type=pathlib.Path)
    parser.add_argument("--optimus", default=ROOT / "build" / "test" / "optimus")
    parser.add_argument("--link", type=float)
    parser.add_argument("--learned")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        args = ["--learned", options.learned] if options.learned else []
        if options.link:
            costs = pathlib.Path(folder) / "costs.json"
            costs.write_text(json.dumps({"format": "optimus-recovery-costs", "version": 1, "link_bytes_per_second": options.link}))
            args += ["--recovery-costs", costs]
        jobs = {(training, trace): pool.submit(replay, options, args, trace, training) for training in TRAININGS for trace in TRACES}
        found = {key: job.result() for key, job in jobs.items()}
    for (training, trace), speeds in found.items():
        if isinstance(speeds, str):
            print(f"omitted: {trace} with {training[0]} on {training[1]}: {speeds}")
    found = {key: speeds for key, speeds in found.items() if not isinstance(speeds, str)}
    print(f"\n{'% of the oracle':<28}" + "".join(f"{policy:>12}" for policy in POLICIES[:-1]))
    for training in TRAININGS:
        rows = [speeds for (one, _), speeds in found.items() if one == training]
        if not rows:
            continue
        print(f"{training[0] + ' on ' + training[1]:<28}" + "".join(f"{of_oracle(rows, policy):>12.2f}" for policy in POLICIES[:-1]))
    print(f"{'all':<28}" + "".join(f"{of_oracle(list(found.values()), policy):>12.2f}" for policy in POLICIES[:-1]))
    parts = sorted((speeds["learned"] / max(speeds[policy] for policy in POLICIES[:-2]), training[0], training[1], trace) for (training, trace), speeds in found.items())
    print(f"\nlearned compared with the best of the others, per case: better in {sum(part[0] > 1.00005 for part in parts)}, equal in {sum(abs(part[0] - 1) <= 5e-5 for part in parts)}, worse in "
          f"{sum(part[0] < 0.99995 for part in parts)} of {len(parts)}; the worst:")
    for part in parts[:4]:
        print(f"  {part[0]:.4f} {part[1]} on {part[2]}, {part[3]}")
    if options.json:
        options.json.write_text(json.dumps([{"model": training[0], "cluster": training[1], "trace": trace, **speeds} for (training, trace), speeds in found.items()], indent=1))


if __name__ == "__main__":
    main()
