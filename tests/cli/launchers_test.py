#!/usr/bin/env python3
"""A training whose ranks somebody else has started: torchrun, mpirun, `optimus launch` over a made-up ssh, variables as a Kubernetes job has
them; the store's port under attack, and etcd in its place. Needs $OPTIMUS (the binary); what is not installed is said and left out."""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

from command_line import OPTIMUS, CommandLineTest, run

SHAPE = "--model gpt2 --layers 2 --hidden 32 --heads 2 --seq 24 --batch 6 --lr 1e-2 --sample 0 --threads 1 --precision fp64".split()
TORCHRUN = os.environ.get("OPTIMUS_TORCHRUN") or shutil.which("torchrun")
TOKEN = "0123456789abcdef0123456789abcdef"
LONG = bool(os.environ.get("OPTIMUS_LONG"))
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OPTIMUS_TOKEN")


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def plain_environment(**variables):
    kept = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    return {**kept, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in variables.items()}}


class LaunchedTest(CommandLineTest):
    """What the tests below share."""

    def setUp(self):
        super().setUp()
        self.text = self.write("text.txt", "".join(f"line {i} of {i * 7 % 31}, and so on\n" for i in range(900)))

    def words(self, name, steps, *more):
        return [str(word) for word in ("train", *SHAPE, "--steps", steps, "--data", self.text, "--run", self.folder / name, "--static", *more)]

    def start(self, words, **variables):
        process = subprocess.Popen(list(map(str, words)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=plain_environment(**variables))
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def start_ranks(self, name, steps, *more, size=2, variables=None, of_rank=None):
        """One process a rank, as a Kubernetes job starts them."""
        port = free_port()
        common = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **(variables or {})}
        return [self.start([OPTIMUS, *self.words(name, steps, *more)], JOB_COMPLETION_INDEX=rank, **common, **((of_rank or {}).get(rank, {})))
                for rank in range(size)], port

    def end(self, process, code=0, timeout=60):
        out, errors = process.communicate(timeout=timeout)
        self.assertEqual(process.returncode, code, errors)
        return out, errors

    def rows(self, name):
        try:
            lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait_for_steps(self, processes, name, count):
        end = time.time() + 90
        while time.time() < end and len(self.rows(name)) < count:
            for process in processes:
                self.assertIsNone(process.poll(), process.poll() is not None and process.communicate()[1])
            time.sleep(0.02)
        self.assertGreaterEqual(len(self.rows(name)), count)

    def workers(self, name):
        return json.loads((self.folder / name / "workers.json").read_text())["workers"]

    def expect_gone(self, pids, seconds=20):
        end = time.time() + seconds
        while any(map(is_alive, pids)) and time.time() < end:
            time.sleep(0.02)
        self.assertEqual([pid for pid in pids if is_alive(pid)], [])

    def expect_equal(self, name, steps):
        """fp64, another order of sums: as in parallel_test.cpp."""
        if not (self.folder / "one").exists():
            run(*self.words("one", steps, "--devices", 1), env=plain_environment())
        self.assertEqual([row["step"] for row in self.rows(name)], list(range(1, steps + 1)))
        for mine, one in zip(self.rows(name), self.rows("one")):
            self.assertAlmostEqual(mine["loss"] / one["loss"], 1, delta=1e-9)
            self.assertAlmostEqual(mine["grad_norm"] / one["grad_norm"], 1, delta=1e-9)

    def expect_killed_rank_ends_all(self, process, name, code=1, says="rank 1 (process "):
        """Within the deadline, with a line that names it."""
        self.wait_for_steps([process], name, 3)
        pids = [worker["pid"] for worker in self.workers(name)]
        began = time.time()
        os.kill(pids[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        self.assertLess(time.time() - began, 45)
        self.assertNotEqual(process.returncode, 0)
        lines = [line for line in errors.splitlines() if "optimus: rank 1 (process " in line]
        self.assertEqual(len(lines), 1, errors)
        self.assertIn(f"process {pids[1]} on", lines[0])
        self.expect_gone(pids)
        self.assertEqual(self.workers(name), [])
        return lines[0]


class Launchers(LaunchedTest):
    def torchrun(self, *more):
        if not TORCHRUN:
            self.skipTest("torchrun is not there ($OPTIMUS_TORCHRUN names it)")
        return [TORCHRUN, *more, "--nproc-per-node", 2, "--no-python", "--", OPTIMUS]  # -- : it would take --run for an option of its own

    def test_torchrun(self):
        command = self.torchrun("--standalone")
        out, errors = self.end(self.start([*command, *self.words("torch", 6, "--tp", 2, "--json")]))
        self.assertEqual(json.loads(out)["steps"], 6)
        self.assertTrue((self.folder / "torch/logs/rank-1.log").exists())
        self.assertEqual(self.workers("torch"), [])
        self.expect_equal("torch", 6)
        self.assertEqual([path.name for path in (self.folder / "torch/logs").glob("mark-*")], [])

    def test_torchrun_with_a_killed_rank(self):
        """torchrun asks the others to end at once; what is left of the state is saved before."""
        name = "killed"
        line = self.expect_killed_rank_ends_all(self.start([*self.torchrun("--standalone"), *self.words(name, 100000, "--dp", 2, "--zero", 0)]), name)
        saved = re.search(r"saved step (\d+): optimus train --resume", line)
        self.assertIsNotNone(saved, line)
        step = int(saved[1])
        self.assertEqual(len(self.rows(name)), step)
        run("train", "--resume", self.folder / name, "--steps", step + 2, "--devices", 1, env=plain_environment())
        self.assertEqual([row["step"] for row in self.rows(name)], list(range(1, step + 3)))

    def test_torchrun_on_two_hosts(self):
        """Two agents, each believing that it is a host of its own: the store is announced in torchrun's own."""
        if not TORCHRUN:
            self.skipTest("torchrun is not there ($OPTIMUS_TORCHRUN names it)")
        port = free_port()
        agents = [self.start([TORCHRUN, "--nnodes", 2, "--node-rank", rank, "--master-addr", "127.0.0.1", "--master-port", port, "--nproc-per-node", 1,
                              "--no-python", "--", OPTIMUS, *self.words("hosts", 6, "--pp", 2, "--microbatch", 1)], OPTIMUS_TOKEN=TOKEN) for rank in range(2)]
        for agent in agents:
            self.end(agent)
        self.expect_equal("hosts", 6)

    def test_mpirun(self):
        if not shutil.which("mpirun"):
            self.skipTest("mpirun is not there (apt-get install openmpi-bin)")
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2, OPTIMUS]
        out, _ = self.end(self.start([*command, *self.words("mpi", 6, "--dp", 2, "--zero", 3, "--json")]))
        self.assertEqual(json.loads(out)["steps"], 6)
        self.expect_equal("mpi", 6)
        self.expect_killed_rank_ends_all(self.start([*command, *self.words("killed", 100000, "--dp", 2)]), "killed")

    def test_kubernetes(self):
        ranks, _ = self.start_ranks("run", 6, "--tp", 2)
        outs = [self.end(rank) for rank in ranks]
        self.assertIn("6 steps", outs[0][0])
        self.assertEqual(outs[1], ("", ""))  # only rank 0 speaks to people
        self.expect_equal("run", 6)
        # It goes on with as many, and with another number of ranks.
        for size in (2, 3) if LONG else (3,):
            ranks = [self.start([OPTIMUS, "train", "--resume", self.folder / "run", "--steps", 6 + size], JOB_COMPLETION_INDEX=rank, WORLD_SIZE=size,
                                MASTER_ADDR="127.0.0.1", MASTER_PORT=7) for rank in range(size)]
            for rank in ranks:
                self.end(rank)
            self.assertEqual(len(self.rows("run")), 6 + size)

    def test_refusals(self):
        """One line each, and nobody waits for long."""
        for says, more, variables in (
                ("--devices 3, but Kubernetes has started 2 ranks", ["--devices", 3], {}),
                ("token", [], {"MASTER_ADDR": socket.gethostname()}),
                ("hidden 33", ["--hidden", 33], {}),
        ):
            ranks, _ = self.start_ranks("no", 2, *more, variables=variables)
            errors = [rank.communicate(timeout=30)[1] for rank in ranks]
            self.assertTrue(all(rank.returncode in (1, 2) for rank in ranks), errors)
            self.assertIn(says, errors[0])
            self.assertLessEqual(max(len(error.splitlines()) for error in errors), 1, errors)
        mode = self.write("token", TOKEN)
        mode.chmod(0o644)
        self.refused(*self.words("no", 2, "--token-file", mode), says=["chmod 600"],
                     env=plain_environment(RANK=1, WORLD_SIZE=2, MASTER_ADDR="other", LOCAL_WORLD_SIZE=1))
        self.assertFalse((self.folder / "no" / "metrics.jsonl").exists())

    def test_interrupted(self):
        ranks, _ = self.start_ranks("run", 100000, "--dp", 2)
        self.wait_for_steps(ranks, "run", 3)
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        for rank in ranks:
            self.end(rank, 130)
        self.assertEqual(self.workers("run"), [])

    def test_a_rank_that_does_not_come(self):
        """Stopped before it has said a word: nobody can know whether its launcher has started it, but there is an end to that."""
        for stopped, says in ((1, "1 of 2 ranks have joined; missing: 1, after 3.0 s"), (0, "rank 1")):
            ranks, _ = self.start_ranks("late", 10, "--dp", 2, "--start-timeout", "3s")
            ranks[stopped].send_signal(signal.SIGSTOP)
            _, errors = self.end(ranks[1 - stopped], 1, 30)
            self.assertIn(says, errors)
            self.assertLessEqual(len([line for line in errors.splitlines() if line.startswith("optimus: ")]), 1, errors)
            ranks[stopped].kill()

    def test_rank_0_is_killed(self):
        """Nobody is there to speak for the others: they do it themselves."""
        ranks, _ = self.start_ranks("run", 100000, "--dp", 2)
        self.wait_for_steps(ranks, "run", 3)
        ranks[0].kill()
        _, errors = self.end(ranks[1], 1, 30)
        self.assertIn("optimus: rank 1 on ", errors)

    def test_folders_that_are_not_shared(self):
        """Rank 1 sees an empty folder where rank 0 has the run's."""
        if not LONG:
            self.skipTest("15 s: with the large counts")
        if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
            self.skipTest("a mount of one process needs root")
        shared = self.folder / "runs"
        shared.mkdir()
        port = free_port()
        common = dict(WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        words = self.words("runs/run", 4, "--dp", 2)
        first = self.start([OPTIMUS, *words], RANK=0, **common)
        second = self.start(["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', shared, OPTIMUS, *words], RANK=1, **common)
        self.end(second, 1)  # this one first: what it says is why the other waits, should it
        _, errors = self.end(first, 1)
        self.assertIn("is not the folder that rank 0 uses", errors)

    def test_attacked(self):
        """A stranger without token, garbage, half-open connections and a crowd do nothing to the run, which listens to the network."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # two thousand sockets
        ranks, port = self.start_ranks("run", 400, "--dp", 2, variables={"OPTIMUS_TOKEN": TOKEN, "LOCAL_WORLD_SIZE": 1})
        self.wait_for_steps(ranks, "run", 2)
        half_open = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        for connection in half_open[:50]:
            connection.sendall(b"optimus-store 1 ")
        for garbage in (b"optimus-store 1 wrong\n", b"g" * 1_000_000, b"\0" * 1_000_000, b"GET / HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.settimeout(10)
                try:
                    stranger.sendall(garbage)
                    self.assertEqual(stranger.recv(100), b"")
                except (ConnectionResetError, BrokenPipeError):
                    pass
        crowd = []
        for _ in range(1000):
            crowd.append(socket.create_connection(("127.0.0.1", port), timeout=10))
        self.assertTrue(all(rank.poll() is None for rank in ranks))
        for connection in half_open + crowd:
            connection.close()
        for rank in ranks:
            self.end(rank, timeout=120)
        self.expect_equal("run", 400) if LONG else self.assertEqual(len(self.rows("run")), 400)
        ranks, _ = self.start_ranks("same", 400, "--dp", 2)
        for rank in ranks:
            self.end(rank, timeout=120)
        self.assertEqual([(row["step"], row["loss"]) for row in self.rows("run")], [(row["step"], row["loss"]) for row in self.rows("same")])


class Etcd(LaunchedTest):
    def setUp(self):
        super().setUp()
        if not shutil.which("etcd"):
            self.skipTest("etcd is not there (apt-get install etcd-server)")
        self.port, peer = free_port(), free_port()
        urls = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{peer}"
        self.etcd = subprocess.Popen(
            ["etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0], "--listen-peer-urls", urls[1],
             "--initial-advertise-peer-urls", urls[1], "--initial-cluster", f"default={urls[1]}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"})
        self.addCleanup(lambda: (self.etcd.kill(), self.etcd.wait()))
        end = time.time() + 30
        while time.time() < end:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)

    def keys(self):
        import base64
        import urllib.request
        body = json.dumps({"key": base64.b64encode(b"optimus/").decode(), "range_end": base64.b64encode(b"optimus0").decode(), "keys_only": True}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v3/kv/range", body, timeout=10) as answer:
            return json.load(answer).get("kvs", [])

    def test_etcd(self):
        store = ["--store", f"etcd://127.0.0.1:{self.port}"]
        run(*self.words("workers", 6, "--devices", 2, "--dp", 2, *store), env=plain_environment())
        self.expect_equal("workers", 6)
        self.assertEqual(self.keys(), [])
        for name in ("ranks", "again"):  # with the same token
            ranks, _ = self.start_ranks(name, 6, "--tp", 2, *store, variables={"OPTIMUS_TOKEN": TOKEN, "LOCAL_WORLD_SIZE": 1})
            for rank in ranks:
                self.end(rank)
            self.expect_equal(name, 6)
        self.assertEqual(self.keys(), [])
        for place, says in (("etcd://127.0.0.1:1", "etcd at 127.0.0.1:1 cannot be reached"), ("redis://x:1", "etcd://")):
            done = run(*self.words("no", 2, "--devices", 2, "--store", place), code=1, env=plain_environment())
            self.assertIn(says, done.stderr.splitlines()[-1])
            shutil.rmtree(self.folder / "no")


class Launch(LaunchedTest):
    def setUp(self):
        super().setUp()
        self.ssh = self.write("ssh", '#!/bin/sh\necho "$@" >> "$0.log"\nshift\nexec sh -c "$1"\n')
        self.ssh.chmod(0o755)

    def launch(self, *words, hosts="localhost,127.0.0.1", more=()):
        return self.start([OPTIMUS, "launch", "--hosts", hosts, "--ssh", self.ssh, *more, "--", *words])

    def rank_pids(self, name):
        return [worker["pid"] for worker in self.workers(name)]

    def test_launch(self):
        out, errors = self.end(self.launch(*self.words("run", 6, "--tp", 2, "--json")))
        self.assertEqual(json.loads(out)["steps"], 6)
        self.assertTrue(any(line.startswith("localhost: model gpt2") for line in errors.splitlines()), errors)
        self.expect_equal("run", 6)
        calls = pathlib.Path(f"{self.ssh}.log").read_text().splitlines()  # both at the same time: in any order
        self.assertEqual(sorted(calls), [f"{host} exec '{OPTIMUS}' launch --here" for host in ("127.0.0.1", "localhost")])
        out, _ = self.end(self.launch(*self.words("four", 6, "--dp", 2, "--tp", 2), more=["--per-host", 2]))
        self.expect_equal("four", 6)

    def test_a_killed_rank(self):
        process = self.launch(*self.words("killed", 100000, "--dp", 2))
        self.expect_killed_rank_ends_all(process, "killed")

    def test_the_connection_dies(self):
        """However the launching side ends, no rank is left."""
        for number, how in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
            name = f"run-{number}"
            process = self.launch(*self.words(name, 100000, "--dp", 2))
            self.wait_for_steps([process], name, 2)
            pids = self.rank_pids(name)
            process.send_signal(number)
            self.end(process, how)
            self.expect_gone(pids)

    def test_refusals(self):
        for words, says in (([], "--hosts"), (["--hosts", "a,,b", "--", "train"], "no host"), (["--hosts", "-oProxyCommand=x", "--", "train"], "--hosts"),
                            (["--hosts", "a"], "-- train"), (["--hosts", "a", "--", "eval"], "-- train")):
            done = run("launch", *words, code=None)
            self.assertIn(done.returncode, (1, 2))
            self.assertIn(says, done.stderr)
        _, errors = self.end(self.start([OPTIMUS, "launch", "--hosts", "a,b", "--ssh", "false", "--", "train"]), 1)
        self.assertRegex(errors, "[ab] ended with code 1")  # whichever is seen first


if __name__ == "__main__":
    unittest.main()
