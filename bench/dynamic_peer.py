"""The FSDP2 variant of bench/dynamic: the training of a scenario by PyTorch's FSDP2 under torchrun, on the scenario's hosts and with its
events. The trainer is fsdp2_peer.py; the lab is in tests/lab.

Each device has its own agent (torchrun), so that one worker is started per device. Agents, and workers while they import modules, run in
the host's control group without a speed limit. The main thread of a worker moves to its device's group when it begins to compute, and
gloo's threads belong to the host, as for Optimus-Megatron (cluster.ThreadMover). If the scenario loses a host, checkpoints are saved as
for static plans; otherwise neither saves."""
import copy
import json
import os
import pathlib
import signal
import subprocess

import dynamic_lab as lab
from dynamic_lab import training

WORKER = pathlib.Path(__file__).resolve().parent / "fsdp2_peer.py"
UNDERSTOOD = ("--layers", "--hidden", "--heads", "--seq", "--batch", "--lr", "--steps", "--threads", "--precision", "--save-every")
ONE_STAGE_KEYS = {"devices", "layers"}
# Seconds. The defaults (3 attempts of 5 s until a host counts as lost, 30 s to wait for late hosts) are for clusters on which a minute is
# short.
RENDEZVOUS_SETTINGS = {"join_timeout": 120, "last_call_timeout": 1, "keep_alive_interval": 1, "keep_alive_max_attempt": 3}
MAX_RESTARTS = 20


def python():
    """Returns a Python that has torch, or None."""
    if os.environ.get("OPTIMUS_PYTHON"):
        return pathlib.Path(os.environ["OPTIMUS_PYTHON"])
    cache = pathlib.Path(os.environ.get("OPTIMUS_CACHE") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "optimus-megatron")
    found = [device_name.parents[4] / "bin" / "python" for part in ("v0", "venv/*") for device_name in cache.glob(f"{part}/lib/python3*/site-packages/torch/version.py")]
    return max(found, key=lambda path: path.parent.stat().st_mtime, default=None)


def applies(spec):
    """Whether the start plan of the scenario consists only of replicas."""
    args = lab.args_of(spec)
    if "--plan" not in args:
        return not {"--pp", "--tp", "--cp", "--ep"} & set(args)
    plan = json.loads((training.PLANS.parent / args[args.index("--plan") + 1]).read_text())
    stages = [stage for pipeline in plan["pipelines"] for stage in pipeline["stages"]]
    return len(stages) == len(plan["pipelines"]) and all(set(stage) <= ONE_STAGE_KEYS for stage in stages)


def scenario_of(spec):
    spec = lab.with_args(copy.deepcopy(spec), [])
    if any(event.what == "kill" for event in spec.runs[0].events):
        spec.training = [*spec.training, "--save-every", "20"]
    return spec


class Agents(training.Ranks):
    """torchrun agents in place of ranks: one for each device."""

    def _args(self):
        self.folder.mkdir(exist_ok=True)
        given = dict(zip(self.scenario.training, self.scenario.training[1:]))  # the last value of a flag counts
        shape = [word for name in UNDERSTOOD if name in given for word in (name, given[name])]
        return [WORKER, *shape, "--data", self.lab.folder / "text.txt", "--folder", self.folder]

    def _start(self, rank, token, args):
        self.token, self.args = token, args
        name, device = self.places[rank]
        return self._process(rank, self._agent(name, is_store=rank == 0), self._variables(name, device))

    def _agent(self, name, is_store):
        lost = {event.target for event in self.run.events if event.what == "kill"}
        most = sum(self.scenario.hosts[host].devices for host in self.run.hosts)
        least = most - sum(self.scenario.hosts[host].devices for host in lost)
        network = self.lab.network
        settings = {**RENDEZVOUS_SETTINGS, "is_host": int(is_store)}
        return ["-m", "torch.distributed.run", "--nnodes", f"{least}:{most}", "--nproc-per-node", 1, "--max-restarts", MAX_RESTARTS, "--rdzv-backend", "c10d", "--rdzv-id", self.token,
                "--rdzv-endpoint", f"{network.address(self.run.hosts[0])}:{training.PORT}", "--rdzv-conf", ",".join(f"{key}={value}" for key, value in settings.items()),
                "--local-addr", network.address(name), "--log-dir", self.logs, *self.args]

    def _variables(self, name, device):
        # If agents share their store with workers, an agent that joins later waits in vain for the address of the store, which is only
        # announced in the first round (torch 2.13).
        return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 1, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": 1, "LAB_DEVICE": self.lab.group(name, device) or "", "PYTHONUNBUFFERED": 1,
                "CUDA_VISIBLE_DEVICES": ""}

    def _process(self, number, args, variables):
        with open(self.logs / f"rank-{number}.out", "w") as out, open(self.logs / f"rank-{number}.err", "w") as errors:
            return self.lab.start(self.places[number][0], None, [python(), *args], {key: str(value) for key, value in variables.items()},
                                  stdin=subprocess.DEVNULL, stdout=out, stderr=errors)

    def join(self, name):
        """Called when a host returns: starts its agents as at the beginning."""
        for device in range(self.scenario.hosts[name].devices):
            self.places.append((name, device))
            self.processes.append(self._process(len(self.processes), self._agent(name, is_store=False), self._variables(name, device)))

    def signal(self, target, number):
        """Kills all agents and workers of a host."""
        if number != signal.SIGKILL or target not in self.run.hosts:
            raise training.Failed(f"FSDP2 supports only events that kill whole hosts, not {signal.Signals(number).name} to {target}")
        self.disturbed.update(self.ranks_on(target))
        for process in self.lab.network.processes(target):
            os.kill(process, number)


class ScenarioRunner(training.ScenarioRunner):
    processes = Agents


def run_scenario(spec, variant, log):
    """Runs the scenario with FSDP2. Throws training.Failed and cluster.Unavailable."""
    found = lab.run_scenario(scenario_of(spec), variant, log, ScenarioRunner)
    check_losses(found)
    return found


def check_losses(found):
    """Losses differ from those of Optimus-Megatron (other samples, other initial weights), but must fall."""
    tenth = max(1, len(found.losses) // 10)
    first, last = sum(found.losses[:tenth]) / tenth, sum(found.losses[-tenth:]) / tenth
    if not last < first:  # also fails if one is NaN
        raise training.Failed(f"{found.variant}: losses do not fall: {first:.3f} at the beginning, {last:.3f} at the end")
