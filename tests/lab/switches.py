"""Random sequences of plan changes as scenarios: four devices on two to four hosts, six plans one after another, some of which leave
devices unused. The same seed gives the same scenario."""
import random

import scenario

TRAINING = ("--model gpt2 --layers 4 --hidden 32 --heads 4 --seq 24 --batch 12 --lr 1e-2 --dropout 0.1 --sample 0 --threads 1 --precision fp64 "
            "--steps 28 --timeout 60s")
HOSTS = ((2, 2), (1, 3), (3, 1), (2, 1, 1), (1, 1, 1, 1))
# Number of devices and layout flags.
PLANS = ("--devices 4 --tp 2 --pp 2", "--devices 4 --dp 4 --zero 3", "--devices 4 --pp 4", "--devices 4 --pp 2 --dp 2 --zero 1", "--devices 4 --tp 4",
         "--devices 4 --cp 2 --dp 2 --zero 2", "--devices 4 --pp 2 --tp 2 --schedule gpipe --recompute full", "--devices 4 --pp 2 --dp 2 --schedule interleaved --chunks 2",
         "--devices 3 --pp 3", "--devices 3 --dp 3", "--devices 2 --tp 2", "--devices 2 --cp 2", "--devices 2 --dp 2 --zero 3", "--devices 1 --microbatch 3",
         "--devices 1 --microbatch 12 --recompute full")
NUM_SWITCHES, STEPS_BETWEEN = 6, 4


def random_scenario(seed):
    generator = random.Random(f"switches {seed}")
    hosts = {f"host{i + 1}": {"devices": count} for i, count in enumerate(generator.choice(HOSTS))}
    plans = [generator.choice(PLANS[:8])]  # the first uses all devices
    while len(plans) <= NUM_SWITCHES:
        plans.append(generator.choice([plan for plan in PLANS if plan != plans[-1]]))
    first = plans[0].replace("--devices 4 ", "")
    table = {
        "about": f"{NUM_SWITCHES} plan changes on {len(hosts)} hosts, from {first}; seed {seed}",
        "training": TRAINING,
        "hosts": hosts,
        "links": {"all": generator.choice(("1 Gbit", "200 Mbit"))},
        "run": [{"train": first, "switch": [f"{(i + 1) * STEPS_BETWEEN}: {plan}" for i, plan in enumerate(plans[1:])],
                 "expect": {"losses": "as one device", "within": "300 s"}}],
    }
    return scenario.read_table(table, f"switches-{seed}")
