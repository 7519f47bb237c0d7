#!/usr/bin/env python3
"""Tests training with ranks that a launcher starts: torchrun, mpirun, `optimus launch` over a simulated ssh, and the variables of a
Kubernetes job; also attacks on the store's port, and etcd in place of the built-in store. Needs $OPTIMUS (the binary). A test whose
launcher is not installed is skipped with a message."""
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


def environment_without_launcher(**variables):
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    return {**inherited, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in variables.items()}}


class LaunchedTest(CommandLineTest):
    """The base of the tests below."""

    def setUp(self):
        super().setUp()
        self.text = self.write("text.txt", "".join(f"line {i} of {i * 7 % 31}, and so on\n" for i in range(900)))

    def train_args(self, name, steps, *more):
        return [str(word) for word in ("train", *SHAPE, "--steps", steps, "--data", self.text, "--run", self.folder / name, "--static", *more)]

    def start(self, args, **variables):
        process = subprocess.Popen(list(map(str, args)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=environment_without_launcher(**variables))
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def start_ranks(self, name, steps, *more, size=2, variables=None, of_rank=None):
        """Starts one process per rank, as a Kubernetes job does."""
        port = free_port()
        common = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **(variables or {})}
        return [self.start([OPTIMUS, *self.train_args(name, steps, *more)], JOB_COMPLETION_INDEX=rank, **common, **((of_rank or {}).get(rank, {})))
                for rank in range(size)], port

    def expect_exit(self, process, code=0, timeout=60):
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

    def expect_processes_ended(self, pids, seconds=20):
        end = time.time() + seconds
        while any(map(is_alive, pids)) and time.time() < end:
            time.sleep(0.02)
        self.assertEqual([pid for pid in pids if is_alive(pid)], [])

    def expect_same_losses(self, name, steps):
        """Compares with one device. fp64, another summation order: as in parallel_test.cpp."""
        if not (self.folder / "one").exists():
            run(*self.train_args("one", steps, "--devices", 1), env=environment_without_launcher())
        self.assertEqual([row["step"] for row in self.rows(name)], list(range(1, steps + 1)))
        for row, one in zip(self.rows(name), self.rows("one")):
            self.assertAlmostEqual(row["loss"] / one["loss"], 1, delta=1e-9)
            self.assertAlmostEqual(row["grad_norm"] / one["grad_norm"], 1, delta=1e-9)

    def expect_killed_rank_ends_all(self, process, name, code=1, contains="rank 1 (process "):
        """Kills rank 1. All ranks must end before the deadline, with one line that names rank 1."""
        self.wait_for_steps([process], name, 3)
        pids = [worker["pid"] for worker in self.workers(name)]
        start_time = time.time()
        os.kill(pids[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        self.assertLess(time.time() - start_time, 45)
        self.assertNotEqual(process.returncode, 0)
        lines = [line for line in errors.splitlines() if "optimus: rank 1 (process " in line]
        self.assertEqual(len(lines), 1, errors)
        self.assertIn(f"process {pids[1]} on", lines[0])
        self.expect_processes_ended(pids)
        self.assertEqual(self.workers(name), [])
        return lines[0]


class Launchers(LaunchedTest):
    def torchrun(self, *more):
        if not TORCHRUN:
            self.skipTest("torchrun was not found (set OPTIMUS_TORCHRUN to its path)")
        return [TORCHRUN, *more, "--nproc-per-node", 2, "--no-python", "--", OPTIMUS]  # without "--", torchrun parses --run as its own option

    def test_torchrun_trains(self):
        command = self.torchrun("--standalone")
        out, errors = self.expect_exit(self.start([*command, *self.train_args("torch", 6, "--tp", 2, "--json")]))
        self.assertEqual(json.loads(out)["steps"], 6)
        self.assertTrue((self.folder / "torch/logs/rank-1.log").exists())
        self.assertEqual(self.workers("torch"), [])
        self.expect_same_losses("torch", 6)
        self.assertEqual([path.name for path in (self.folder / "torch/logs").glob("mark-*")], [])

    def test_torchrun_saves_when_a_rank_is_killed(self):
        """torchrun sends SIGTERM to the other ranks at once; the remaining state is saved before they end."""
        name = "killed"
        line = self.expect_killed_rank_ends_all(self.start([*self.torchrun("--standalone"), *self.train_args(name, 100000, "--dp", 2, "--zero", 0)]), name)
        saved = re.search(r"saved step (\d+): optimus train --resume", line)
        self.assertIsNotNone(saved, line)
        step = int(saved[1])
        self.assertEqual(len(self.rows(name)), step)
        run("train", "--resume", self.folder / name, "--steps", step + 2, "--devices", 1, env=environment_without_launcher())
        self.assertEqual([row["step"] for row in self.rows(name)], list(range(1, step + 3)))

    def test_torchrun_on_two_hosts(self):
        """Starts two agents that each act as a separate host. The address of the store is announced through torchrun's own store."""
        if not TORCHRUN:
            self.skipTest("torchrun was not found (set OPTIMUS_TORCHRUN to its path)")
        port = free_port()
        agents = [self.start([TORCHRUN, "--nnodes", 2, "--node-rank", rank, "--master-addr", "127.0.0.1", "--master-port", port, "--nproc-per-node", 1,
                              "--no-python", "--", OPTIMUS, *self.train_args("hosts", 6, "--pp", 2, "--microbatch", 1)], OPTIMUS_TOKEN=TOKEN) for rank in range(2)]
        for agent in agents:
            self.expect_exit(agent)
        self.expect_same_losses("hosts", 6)

    def test_mpirun_trains(self):
        if not shutil.which("mpirun"):
            self.skipTest("mpirun was not found (apt-get install openmpi-bin)")
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2, OPTIMUS]
        out, _ = self.expect_exit(self.start([*command, *self.train_args("mpi", 6, "--dp", 2, "--zero", 3, "--json")]))
        self.assertEqual(json.loads(out)["steps"], 6)
        self.expect_same_losses("mpi", 6)
        self.expect_killed_rank_ends_all(self.start([*command, *self.train_args("killed", 100000, "--dp", 2)]), "killed")

    def test_kubernetes_trains_and_resumes(self):
        ranks, _ = self.start_ranks("run", 6, "--tp", 2)
        outs = [self.expect_exit(rank) for rank in ranks]
        self.assertIn("6 steps", outs[0][0])
        self.assertEqual(outs[1], ("", ""))  # only rank 0 prints to the console
        self.expect_same_losses("run", 6)
        # The run resumes with the same number of ranks, and with another.
        for size in (2, 3) if LONG else (3,):
            ranks = [self.start([OPTIMUS, "train", "--resume", self.folder / "run", "--steps", 6 + size], JOB_COMPLETION_INDEX=rank, WORLD_SIZE=size,
                                MASTER_ADDR="127.0.0.1", MASTER_PORT=7) for rank in range(size)]
            for rank in ranks:
                self.expect_exit(rank)
            self.assertEqual(len(self.rows("run")), 6 + size)

    def test_reports_usage_errors(self):
        """Every error is one line, and no rank waits long."""
        for contains, more, variables in (
                ("--devices is 3, but Kubernetes started 2 ranks", ["--devices", 3], {}),
                ("token", [], {"MASTER_ADDR": socket.gethostname()}),
                ("hidden 33", ["--hidden", 33], {}),
        ):
            ranks, _ = self.start_ranks("no", 2, *more, variables=variables)
            errors = [rank.communicate(timeout=30)[1] for rank in ranks]
            self.assertTrue(all(rank.returncode in (1, 2) for rank in ranks), errors)
            self.assertIn(contains, errors[0])
            self.assertLessEqual(max(len(error.splitlines()) for error in errors), 1, errors)
        token_file = self.write("token", TOKEN)
        token_file.chmod(0o644)
        self.expect_error(*self.train_args("no", 2, "--token-file", token_file), contains=["chmod 600"],
                     env=environment_without_launcher(RANK=1, WORLD_SIZE=2, MASTER_ADDR="other", LOCAL_WORLD_SIZE=1))
        self.assertFalse((self.folder / "no" / "metrics.jsonl").exists())

    def test_sigterm_interrupts_the_run(self):
        ranks, _ = self.start_ranks("run", 100000, "--dp", 2)
        self.wait_for_steps(ranks, "run", 3)
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        for rank in ranks:
            self.expect_exit(rank, 130)
        self.assertEqual(self.workers("run"), [])

    def test_start_timeout_names_the_missing_rank(self):
        """Stops a rank before it has sent its join request. The others cannot know whether the launcher has started it, but the wait is
        limited."""
        for stopped, contains in ((1, "1 of 2 ranks have joined; missing: 1, after waiting for 3.0 s"), (0, "rank 1")):
            ranks, _ = self.start_ranks("late", 10, "--dp", 2, "--start-timeout", "3s")
            ranks[stopped].send_signal(signal.SIGSTOP)
            _, errors = self.expect_exit(ranks[1 - stopped], 1, 30)
            self.assertIn(contains, errors)
            self.assertLessEqual(len([line for line in errors.splitlines() if line.startswith("optimus: ")]), 1, errors)
            ranks[stopped].kill()

    def test_other_ranks_report_when_rank_0_is_killed(self):
        """Rank 0, which reports for the others, is lost: the other ranks print their own messages."""
        ranks, _ = self.start_ranks("run", 100000, "--dp", 2)
        self.wait_for_steps(ranks, "run", 3)
        ranks[0].kill()
        _, errors = self.expect_exit(ranks[1], 1, 30)
        self.assertIn("optimus: rank 1 on ", errors)

    def test_rejects_run_folders_that_are_not_shared(self):
        """Rank 1 sees an empty folder where rank 0 sees the run folder."""
        if not LONG:
            self.skipTest("takes 15 s: runs only with OPTIMUS_LONG")
        if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
            self.skipTest("a mount namespace needs root")
        shared = self.folder / "runs"
        shared.mkdir()
        port = free_port()
        common = dict(WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        args = self.train_args("runs/run", 4, "--dp", 2)
        first = self.start([OPTIMUS, *args], RANK=0, **common)
        second = self.start(["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', shared, OPTIMUS, *args], RANK=1, **common)
        self.expect_exit(second, 1)  # wait for this one first: its message explains why the other one waits, if it does
        _, errors = self.expect_exit(first, 1)
        self.assertIn("is not the folder that rank 0 uses", errors)

    def test_store_port_withstands_attacks(self):
        """Connections without the token, with garbage, half-open or in large numbers do not affect a run that listens on the network."""
        _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))  # for two thousand sockets
        ranks, port = self.start_ranks("run", 400, "--dp", 2, variables={"OPTIMUS_TOKEN": TOKEN, "LOCAL_WORLD_SIZE": 1})
        self.wait_for_steps(ranks, "run", 2)
        half_open = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        for connection in half_open[:50]:
            connection.sendall(b"optimus-store 1 ")
        for garbage in (b"optimus-store 1 wrong\n", b"g" * 1_000_000, b"\0" * 1_000_000, b"GET / HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port)) as attacker:
                attacker.settimeout(10)
                try:
                    attacker.sendall(garbage)
                    self.assertEqual(attacker.recv(100), b"")
                except (ConnectionResetError, BrokenPipeError):
                    pass
        many_connections = []
        for _ in range(1000):
            many_connections.append(socket.create_connection(("127.0.0.1", port), timeout=10))
        self.assertTrue(all(rank.poll() is None for rank in ranks))
        for connection in half_open + many_connections:
            connection.close()
        for rank in ranks:
            self.expect_exit(rank, timeout=120)
        self.expect_same_losses("run", 400) if LONG else self.assertEqual(len(self.rows("run")), 400)
        ranks, _ = self.start_ranks("same", 400, "--dp", 2)
        for rank in ranks:
            self.expect_exit(rank, timeout=120)
        self.assertEqual([(row["step"], row["loss"]) for row in self.rows("run")], [(row["step"], row["loss"]) for row in self.rows("same")])


class Etcd(LaunchedTest):
    def setUp(self):
        super().setUp()
        if not shutil.which("etcd"):
            self.skipTest("etcd was not found (apt-get install etcd-server)")
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
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v3/kv/range", body, timeout=10) as reply:
            return json.load(reply).get("kvs", [])

    def test_trains_with_etcd_as_the_store(self):
        store = ["--store", f"etcd://127.0.0.1:{self.port}"]
        run(*self.train_args("workers", 6, "--devices", 2, "--dp", 2, *store), env=environment_without_launcher())
        self.expect_same_losses("workers", 6)
        self.assertEqual(self.keys(), [])
        for name in ("ranks", "again"):  # with the same token
            ranks, _ = self.start_ranks(name, 6, "--tp", 2, *store, variables={"OPTIMUS_TOKEN": TOKEN, "LOCAL_WORLD_SIZE": 1})
            for rank in ranks:
                self.expect_exit(rank)
            self.expect_same_losses(name, 6)
        self.assertEqual(self.keys(), [])
        for place, contains in (("etcd://127.0.0.1:1", "etcd at 127.0.0.1:1 cannot be reached"), ("redis://x:1", "etcd://")):
            result = run(*self.train_args("no", 2, "--devices", 2, "--store", place), code=1, env=environment_without_launcher())
            self.assertIn(contains, result.stderr.splitlines()[-1])
            shutil.rmtree(self.folder / "no")


class Launch(LaunchedTest):
    def setUp(self):
        super().setUp()
        self.ssh = self.write("ssh", '#!/bin/sh\necho "$@" >> "$0.log"\nshift\nexec sh -c "$1"\n')
        self.ssh.chmod(0o755)

    def launch(self, *args, hosts="localhost,127.0.0.1", more=()):
        return self.start([OPTIMUS, "launch", "--hosts", hosts, "--ssh", self.ssh, *more, "--", *args])

    def rank_pids(self, name):
        return [worker["pid"] for worker in self.workers(name)]

    def test_launch_trains_over_ssh(self):
        out, errors = self.expect_exit(self.launch(*self.train_args("run", 6, "--tp", 2, "--json")))
        self.assertEqual(json.loads(out)["steps"], 6)
        self.assertTrue(any(line.startswith("localhost: model gpt2") for line in errors.splitlines()), errors)
        self.expect_same_losses("run", 6)
        calls = pathlib.Path(f"{self.ssh}.log").read_text().splitlines()  # both start at the same time, so in any order
        self.assertEqual(sorted(calls), [f"{host} exec '{OPTIMUS}' launch --here" for host in ("127.0.0.1", "localhost")])
        out, _ = self.expect_exit(self.launch(*self.train_args("four", 6, "--dp", 2, "--tp", 2), more=["--per-host", 2]))
        self.expect_same_losses("four", 6)

    def test_killed_rank_ends_all_ranks(self):
        process = self.launch(*self.train_args("killed", 100000, "--dp", 2))
        self.expect_killed_rank_ends_all(process, "killed")

    def test_ranks_end_when_the_connection_drops(self):
        """No rank survives the end of the launching process, however that ends."""
        for number, exit_code in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
            name = f"run-{number}"
            process = self.launch(*self.train_args(name, 100000, "--dp", 2))
            self.wait_for_steps([process], name, 2)
            pids = self.rank_pids(name)
            process.send_signal(number)
            self.expect_exit(process, exit_code)
            self.expect_processes_ended(pids)

    def test_reports_usage_errors(self):
        for args, contains in (([], "--hosts"), (["--hosts", "a,,b", "--", "train"], "is not a host name"), (["--hosts", "-oProxyCommand=x", "--", "train"], "--hosts"),
                            (["--hosts", "a"], "-- train"), (["--hosts", "a", "--", "eval"], "-- train")):
            result = run("launch", *args, code=None)
            self.assertIn(result.returncode, (1, 2))
            self.assertIn(contains, result.stderr)
        _, errors = self.expect_exit(self.start([OPTIMUS, "launch", "--hosts", "a,b", "--ssh", "false", "--", "train"]), 1)
        self.assertRegex(errors, "[ab] exited with code 1")  # whichever host is observed first


if __name__ == "__main__":
    unittest.main()
