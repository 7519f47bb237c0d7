"""The peer of bench/dynamic: a scenario's training by PyTorch's FSDP2 under torchrun, on the scenario's hosts and with its events. What is trained: fsdp2_peer.py; the lab itself: tests/lab.

A device has an agent (torchrun) of its own, so that a worker is started for each device. Agents, and workers while they import, run on the host, at no pace; a worker's first thread goes to its device when it begins
to compute, and what threads gloo has are the host's business, as for ours (cluster.Sorter). Where a host is lost, checkpoints are saved as for plans that are kept; where none is, neither saves."""
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
# Seconds; the usual ones (5 times 3 until a host is lost, 30 for those that come late) are for clusters where a minute does not count.
PATIENCE = {"join_timeout": 120, "last_call_timeout": 1, "keep_alive_interval": 1, "keep_alive_max_attempt": 3}
MOST_RESTARTS = 20


def python():
    """One that has torch; none where there is none."""
    if os.environ.get("OPTIMUS_PYTHON"):
        return pathlib.Path(os.environ["OPTIMUS_PYTHON"])
    cache = pathlib.Path(os.environ.get("OPTIMUS_CACHE") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "optimus-megatron")
    found = [place.parents[4] / "bin" / "python" for part in ("v0", "venv/*") for place in cache.glob(f"{part}/lib/python3*/site-packages/torch/version.py")]
    return max(found, key=lambda path: path.parent.stat().st_mtime, default=None)


def applies(one):
    """Whether the scenario begins with nothing but copies of the model."""
    words = lab.words_of(one)
    if "--plan" not in words:
        return not {"--pp", "--tp", "--cp", "--ep"} & set(words)
    plan = json.loads((training.PLANS.parent / words[words.index("--plan") + 1]).read_text())
    stages = [stage for pipeline in plan["pipelines"] for stage in pipeline["stages"]]
    return len(stages) == len(plan["pipelines"]) and all(set(stage) <= ONE_STAGE_KEYS for stage in stages)


def scenario_of(one):
    one = lab.with_words(copy.deepcopy(one), [])
    if any(event.what == "kill" for event in one.runs[0].events):
        one.training = [*one.training, "--save-every", "20"]
    return one


class Agents(training.Ranks):
    """Of torchrun, in place of ranks: one for each device."""

    def _words(self):
        self.folder.mkdir(exist_ok=True)
        given = dict(zip(self.scenario.training, self.scenario.training[1:]))  # the last of a name counts
        shape = [word for name in UNDERSTOOD if name in given for word in (name, given[name])]
        return [WORKER, *shape, "--data", self.lab.folder / "text.txt", "--folder", self.folder]

    def _start(self, rank, token, words):
        self.token, self.words = token, words
        name, device = self.places[rank]
        return self._process(rank, self._agent(name, is_store=rank == 0), self._variables(name, device))

    def _agent(self, name, is_store):
        lost = {event.who for event in self.run.events if event.what == "kill"}
        most = sum(self.scenario.hosts[host].devices for host in self.run.hosts)
        least = most - sum(self.scenario.hosts[host].devices for host in lost)
        network = self.lab.network
        settings = {**PATIENCE, "is_host": int(is_store)}
        return ["-m", "torch.distributed.run", "--nnodes", f"{least}:{most}", "--nproc-per-node", 1, "--max-restarts", MOST_RESTARTS, "--rdzv-backend", "c10d", "--rdzv-id", self.token,
                "--rdzv-endpoint", f"{network.address(self.run.hosts[0])}:{training.PORT}", "--rdzv-conf", ",".join(f"{key}={value}" for key, value in settings.items()),
                "--local-addr", network.address(name), "--log-dir", self.logs, *self.words]

    def _variables(self, name, device):
        # An agent that comes later waits in vain for the store's address if agents share their store with workers: they tell it in the first round only (torch 2.13).
        return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 1, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": 1, "LAB_DEVICE": self.lab.group(name, device) or "", "PYTHONUNBUFFERED": 1,
                "CUDA_VISIBLE_DEVICES": ""}

    def _process(self, number, words, variables):
        with open(self.logs / f"rank-{number}.out", "w") as out, open(self.logs / f"rank-{number}.err", "w") as errors:
            return self.lab.start(self.places[number][0], None, [python(), *words], {key: str(value) for key, value in variables.items()},
                                  stdin=subprocess.DEVNULL, stdout=out, stderr=errors)

    def join(self, name):
        """The host is there again: its agents are started as at the begin."""
        for device in range(self.scenario.hosts[name].devices):
            self.places.append((name, device))
            self.processes.append(self._process(len(self.processes), self._agent(name, is_store=False), self._variables(name, device)))

    def signal(self, who, number):
        """Of a whole host: of agents and workers."""
        if number != signal.SIGKILL or who not in self.run.hosts:
            raise training.Failed(f"FSDP2 is played with whole hosts that are killed, not with {signal.Signals(number).name} to {who}")
        self.disturbed.update(self.matching(who))
        for process in self.lab.network.processes(who):
            os.kill(process, number)


class Player(training.Player):
    processes = Agents


def play(one, way, say):
    """Throws training.Failed and cluster.Unavailable."""
    found = lab.play(scenario_of(one), way, say, Player)
    check_losses(found)
    return found


def check_losses(found):
    """They are not ours (other samples, another start), but must be those of a training."""
    tenth = max(1, len(found.losses) // 10)
    first, last = sum(found.losses[:tenth]) / tenth, sum(found.losses[-tenth:]) / tenth
    if not last < first:  # nor where one is no number
        raise training.Failed(f"{found.way}: losses do not fall: {first:.3f} at first, {last:.3f} at last")
