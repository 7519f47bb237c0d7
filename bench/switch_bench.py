#!/usr/bin/env python3
"""The pause of a training run that changes its plan, compared with a checkpoint and a restart with the other plan by the same binary,
and, on links of known speed, with the bytes that have to be transferred.

  bench/switch_bench.py build/test/optimus [--devices 4] [--rounds 5]          compared with a restart; also steps while a plan is prepared
  bench/switch_bench.py build/test/optimus --links                              two hosts of the lab (root), by size and link speed

Each with state that is sent early (--precopy auto) and without (never); the step during which it is sent is compared with normal steps.

Nothing else may run on the machine meanwhile."""
import argparse
import json
import pathlib
import secrets
import statistics
import subprocess
import sys
import tempfile
import time

LAB = pathlib.Path(__file__).resolve().parents[1] / "tests" / "lab"
SIZES = {"0.1M": (2, 64, 2), "1M": (4, 128, 4), "10M": (6, 320, 8), "30M": (8, 512, 8), "57M": (8, 720, 12)}  # layers, hidden, heads
SEQUENCE, BATCH = 64, 16
BETWEEN = 4  # steps between two changes of a run


def args_of(size):
    layers, hidden, heads = SIZES[size]
    return ["--model", "gpt2", "--layers", layers, "--hidden", hidden, "--heads", heads, "--seq", SEQUENCE]


def call(optimus, *args, **options):
    result = subprocess.run([optimus, *map(str, args)], capture_output=True, text=True, timeout=900, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, args))}: {result.stderr.strip().splitlines()[-1:]}")
    return result.stdout


def plan_of(optimus, folder, size, devices, layout):
    out = folder / f"{size}-{devices}-{layout.replace(' ', '').replace('-', '')}"
    call(optimus, "plan", *args_of(size), "--vocab", 257, "--cluster", f"cpux{devices}", "--batch", BATCH, "--precision", "fp32", *layout.split(), "--export",
         "optimus", "--out", out)
    return out / "plan.json"


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def last_decision(run):
    return json.loads((run / "decisions.jsonl").read_text().splitlines()[-1])


def training(size, text, run, *more):
    return ["train", *args_of(size), "--data", text, "--run", run, "--batch", BATCH, "--precision", "fp32", "--sample", 0, "--threads", 1, "--save-every", 0,
            "--validation", 0, *more]


def restart_seconds(optimus, size, text, folder, devices, first, second, steps):
    """Measures the time from the end of the last step with one plan to the end of the first with the other, minus that step."""
    run = folder / f"restart-{secrets.token_hex(4)}"
    process = subprocess.Popen([optimus, *map(str, training(size, text, run, "--devices", devices, "--plan", first, "--steps", steps))],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path = run / "metrics.jsonl"

    def wait_for(step):
        while not path.exists() or f'{{"step":{step},' not in path.read_text():
            time.sleep(0.001)
        return time.monotonic()

    start_time = wait_for(steps)
    process.wait()
    process = subprocess.Popen([optimus, "train", "--resume", str(run), "--plan", str(second), "--steps", str(steps + 2)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    ended = wait_for(steps + 1)
    process.wait()
    return ended - start_time - rows_of(run)[steps]["seconds"]


def compare_with_restart(optimus, options, folder, text):
    print(f"{'parameters':<10} {'precopy':<8} {'step':>9} {'pause':>9} {'steps':>6} {'restart':>9} {'ratio':>7} {'steps':>6} {'prepared':>9} {'meanwhile':>10} {'early step':>10}")
    for size, precopy in ((size, precopy) for size in options.sizes.split(",") for precopy in options.precopy.split(",")):
        first = plan_of(optimus, folder, size, options.devices, f"--pp {options.devices}")
        second = plan_of(optimus, folder, size, options.devices, f"--dp {options.devices} --zero 1")
        pauses, restarts, steps_taken, prepared, during_ratio, early = [], [], [], [], [], []
        for round_ in range(options.rounds):
            run = folder / f"{size}-{precopy}-{round_}"
            call(optimus, *training(size, text, run, "--devices", options.devices, "--plan", first, "--steps", 24, "--switch-at", f"16:{second}", "--precopy", precopy))
            rows, decision = rows_of(run), last_decision(run)
            baseline = statistics.median(row["seconds"] for row in rows[4:13])
            # Preparation begins three steps before the switch and takes as long as it needs.
            during, left = [], decision["prepare_seconds"]
            for row in rows[13:16]:
                if left > 0:
                    during.append(row["seconds"])
                left -= row["seconds"]
            pauses.append(decision["pause_seconds"]), prepared.append(decision["prepare_seconds"]), steps_taken.append(baseline)
            during_ratio.append(baseline / statistics.mean(during)), early.append(baseline / rows[15]["seconds"])
            restarts.append(restart_seconds(optimus, size, text, folder, options.devices, first, second, 16))
        pause, restart, step = statistics.median(pauses), statistics.median(restarts), statistics.median(steps_taken)
        print(f"{size:<10} {precopy:<8} {1e3 * step:>6.0f} ms {1e3 * pause:>6.0f} ms {pause / step:>6.2f} "
              f"{restart:>7.2f} s {restart / pause:>7.1f} {restart / step:>6.1f} {1e3 * statistics.median(prepared):>6.0f} ms {statistics.median(during_ratio):>9.1%} {statistics.median(early):>9.1%}"
              f"   (pauses {1e3 * min(pauses):.0f} to {1e3 * max(pauses):.0f} ms; early {decision['early_bytes'] / 2**20:.1f}, again {decision['precopied_bytes'] / 2**20:.1f} "
              f"of {decision['moved_bytes'] / 2**20:.1f} MiB)", flush=True)


def move_over_links(optimus, size, speed, precopy, options, folder, text):
    """Runs on two hosts that switch back and forth. Returns the decisions of the switches from two stages to two replicas, and all
    steps."""
    sys.path.insert(0, str(LAB))
    import cluster  # tests/lab/cluster.py
    first, second = plan_of(optimus, folder, size, 2, "--pp 2"), plan_of(optimus, folder, size, 2, "--dp 2")
    changes = [(BETWEEN * (i + 1), second if i % 2 == 0 else first) for i in range(2 * options.rounds - 1)]
    script = ",".join(f"{step}:{plan}" for step, plan in changes)
    with cluster.Cluster({"host1": (1, options.pace), "host2": (1, options.pace)}) as lab:
        for name in ("host1", "host2"):
            lab.network.shape(name, speed)
        run, token, ranks = lab.shared / "run", secrets.token_hex(16), []
        for rank, name in enumerate(("host1", "host2")):
            variables = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": lab.network.address("host1"), "MASTER_PORT": 29400,
                         "OPTIMUS_TOKEN": token, "OMP_NUM_THREADS": 1}
            args = training(size, text, run, "--plan", first, "--steps", changes[-1][0] + 1, "--switch-at", script, "--precopy", precopy)
            ranks.append(lab.start(name, 0, [optimus, *map(str, args)], {k: str(v) for k, v in variables.items()},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL))
        for process in ranks:
            if process.wait(600) != 0:
                sys.exit(f"a rank of {size} at {speed:.0f} bit/s exited with code {process.returncode}")
        decisions = [json.loads(line) for line in (run / "decisions.jsonl").read_text().splitlines()]
        return [one for one in decisions if one["kind"] == "switch"][::2], rows_of(run)


def measure_on_links(optimus, options, folder, text):
    print(f"{'parameters':<10} {'link':>10} {'precopy':<8} {'over a link':>12} {'early':>10} {'bound':>9} {'pause':>9} {'of its speed':>13} {'step':>8} {'early step':>10}")
    for size, precopy in ((size, precopy) for size in options.sizes.split(",") for precopy in options.precopy.split(",")):
        for speed in (float(word) * 1e6 for word in options.speeds.split(",")):
            decisions, rows = move_over_links(optimus, size, speed, precopy, options, folder, text)
            pauses = [one["pause_seconds"] for one in decisions]
            pause, moved, early = statistics.median(pauses), decisions[0]["moved_bytes"] / 2, statistics.median(one["early_bytes"] / 2 for one in decisions)
            # Each host receives what the other one has: half of the moved bytes goes in each direction, at the same time.
            bound = moved * 8 / speed
            # Two steps with two stages between changes; state is sent early during the last of them.
            before = [(rows[2 * BETWEEN * i + BETWEEN - 2]["seconds"], rows[2 * BETWEEN * i + BETWEEN - 1]["seconds"]) for i in range(options.rounds)]
            baseline, during_ratio = statistics.median(one for one, _ in before), statistics.median(one / other for one, other in before)
            print(f"{size:<10} {speed / 1e6:>5.0f} Mbit {precopy:<8} {moved / 2**20:>8.1f} MiB {early / 2**20:>6.1f} MiB {bound:>7.2f} s {pause:>7.3f} s {bound / pause:>13.1%} "
                  f"{baseline:>6.2f} s {during_ratio:>9.1%}   (pauses {min(pauses):.3f} to {max(pauses):.3f} s)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("optimus", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="0.1M,1M,10M")
    parser.add_argument("--links", action="store_true")
    parser.add_argument("--speeds", default="100,300,1000", help="link speeds in Mbit/s")
    parser.add_argument("--pace", type=float, default=1, help="with --links: speed of each device as a fraction of a core; 1: unlimited")
    parser.add_argument("--precopy", default="never,auto")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        text = folder / "text.txt"
        text.write_text("".join(f"line {i} of {i * 7 % 31}, and so on\n" for i in range(3000)))
        (measure_on_links if options.links else compare_with_restart)(options.optimus, options, folder, text)


if __name__ == "__main__":
    main()
