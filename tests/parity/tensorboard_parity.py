"""Our event files, read by TensorBoard itself: every tag, step, time and value must be read back exactly.

usage: tensorboard_parity.py PATH_OF_TENSORBOARD_TOOL

A run of random metrics is written, killed, and resumed from an earlier step into a second file; TensorBoard must then
show each step once. A truncated file must still yield all complete records.
"""

import json
import logging
import math
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

logging.disable(logging.WARNING)  # hides TensorBoard's warnings about dropped steps and truncated records
tool = sys.argv[1]
seed = int(os.environ.get("OPTIMUS_SEED") or random.randrange(10**9))
rng = random.Random(seed)
TAGS = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "lr": "train/lr",
    "tokens_per_second": "train/tokens_per_second",
    "loss_scale": "train/loss_scale",
    "tflops": "train/tflops",
    "mfu": "train/mfu",
    "memory_bytes": "train/memory_bytes",
    "validation_loss": "validation/loss",
}
ALWAYS = ("loss", "grad_norm", "lr", "tokens_per_second")


def as_float(value):
    """Rounds to float; null represents a number that is not finite."""
    return math.nan if value is None else struct.unpack("f", struct.pack("f", value))[0]


def random_metrics(step):
    metrics = {"step": step}
    for key in TAGS:
        if key == "memory_bytes":
            value = rng.randrange(2**40)
        else:
            value = rng.choice([rng.uniform(-10, 10), 10 ** rng.uniform(-44, 38), 0.0])
        if key in ALWAYS:
            metrics[key] = None if rng.random() < 0.1 else value
        elif rng.random() < 0.5:
            metrics[key] = value
    return metrics


def write(folder, last_step, wall_time, lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    subprocess.run([tool, folder, str(last_step), repr(wall_time)], input=text, text=True, check=True)


def expected(wall_time, lines):
    """Returns (step, wall time, value) of the lines by tag; the first line is written at wall_time + 1 s."""
    result = {tag: [] for tag in TAGS.values()}
    for number, line in enumerate(lines, 1):
        for key, tag in TAGS.items():
            if key in line:
                result[tag].append((line["step"], wall_time + number, as_float(line[key])))
    return result


def same(a, b):
    return a[:2] == b[:2] and (a[2] == b[2] or (math.isnan(a[2]) and math.isnan(b[2])))


def check_run():
    steps = rng.randrange(2, 60)
    resumed = rng.randrange(0, steps)
    began, later = 1.7e9 + rng.random(), 1.7e9 + 1000 + rng.random()
    first = [random_metrics(step) for step in range(1, steps + 1)]
    second = [random_metrics(step) for step in range(resumed + 1, resumed + rng.randrange(2, 60))]
    with tempfile.TemporaryDirectory() as folder:
        write(folder, 0, began, first)
        write(folder, resumed, later, second)
        board = EventAccumulator(folder, size_guidance={"scalars": 0})
        board.Reload()
        want = expected(began, first[:resumed])
        for tag, points in expected(later, second).items():
            want[tag] += points
        assert board.FirstEventTimestamp() == began, (board.FirstEventTimestamp(), began)
        for tag, points in want.items():
            shown = [(p.step, p.wall_time, p.value) for p in board.Scalars(tag)] if tag in board.Tags()["scalars"] else []
            assert len(shown) == len(points) and all(map(same, shown, points)), f"{tag}: {shown} instead of {points}"


def check_truncated():
    lines = [random_metrics(step) for step in range(1, 4)]
    with tempfile.TemporaryDirectory() as folder:
        write(folder, 0, 1.7e9, lines)
        (path,) = pathlib.Path(folder).iterdir()
        whole = path.read_bytes()
        ends, at = [], 0
        while at < len(whole):
            at += 16 + struct.unpack_from("<Q", whole, at)[0]
            ends.append(at)
        assert at == len(whole) and len(ends) == 5  # version, start, three steps
        for size in range(len(whole) + 1):
            path.write_bytes(whole[:size])
            events = list(EventFileLoader(str(path)).Load())
            assert len(events) == sum(end <= size for end in ends), f"{size} bytes: {len(events)} events"


num_runs = 100 if os.environ.get("OPTIMUS_LONG") == "1" else 15
for _ in range(num_runs):
    check_run()
check_truncated()
print(f"tensorboard: {num_runs} resumed runs read back exactly, seed {seed}")
