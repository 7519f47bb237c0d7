#!/usr/bin/env python3
"""Tests the lab itself: link speeds, cuts, device speeds, disks, and that nothing is left behind, also by a lab that was killed. Needs only
Python's standard library. If this machine cannot run a lab, one line gives the reason and the other tests are skipped."""
import pathlib
import signal
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import cluster  # noqa: E402
import faults  # noqa: E402
import paces  # noqa: E402
import scenario  # noqa: E402
import switches  # noqa: E402

TRAFFIC = [sys.executable, str(HERE / "traffic.py")]
try:
    cluster.check_available()
    UNAVAILABLE = ""
except cluster.Unavailable as error:
    UNAVAILABLE = str(error)


class Scenarios(unittest.TestCase):
    def test_shipped_scenarios_are_valid(self):
        files = list((HERE / "scenarios").glob("*.toml"))
        self.assertGreaterEqual(len(files), 7)
        for file in files:
            self.assertTrue(scenario.read_scenario(file).about, file)
        for seed in range(200):
            self.assertEqual(faults.random_scenario(seed), faults.random_scenario(seed))
            self.assertEqual(len(switches.random_scenario(seed).runs[0].switches), switches.NUM_SWITCHES)

    def test_reports_invalid_scenarios(self):
        good = {"hosts": {"a": {"devices": 2}, "b": {}}, "run": [{"train": ""}]}
        scenario.read_table(good, "good")
        for wrong, contains in (({"host": {}}, "unknown key 'host'"), ({"hosts": {}}, "1 to 200 hosts"), ({"links": {"c": "1 Gbit"}}, "unknown key 'c'"),
                            ({"links": {"all": "1 Gb"}}, "'1 Gb' is not a number with one of the units bit, Kbit"), ({"run": []}, "needs a [[run]]"),
                            ({"run": [{"train": "", "event": [{"at_step": 1, "kill": "a/2"}]}]}, "run 1, event 1: kill = 'a/2' is neither"),
                            ({"run": [{"train": "", "event": [{"kill": "a"}]}]}, "needs one of at_start, at_step"),
                            ({"run": [{"train": "", "event": [{"at_step": 1, "slow": "a"}]}]}, "belong together"),
                            ({"run": [{"train": "", "switch": ["--pp 2"]}]}, "run 1, switch 1: '--pp 2' is not"),
                            ({"run": [{"train": "", "switch": ["5: --pp 2 --devices"]}]}, "STEP: --devices N WORDS"),
                            ({"run": [{"measure": "", "switch": ["5: --devices 2"]}]}, "no plan to switch"),
                            ({"run": [{"train": "", "expect": {"losses": "good"}}]}, "not 'good'")):
            with self.assertRaises(scenario.ScenarioError) as caught:
                scenario.read_table({**good, **wrong}, "wrong")
            self.assertIn(contains, str(caught.exception))


@unittest.skipIf(UNAVAILABLE, f"this machine cannot run a lab: {UNAVAILABLE}")
class Lab(unittest.TestCase):
    def run_traffic(self, lab, host, *args, code=0):
        child = lab.start(host, 0, [*TRAFFIC, *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        out = child.communicate(timeout=20)[0]
        self.assertEqual(child.returncode, code)
        return float(out) if out else None

    def test_links_have_their_speed(self):
        """Ethernet and TCP headers are 4 % of a packet of 1500 bytes. The best of three counts, since a busy machine wakes a sender
        late."""
        with cluster.Cluster({"host1": (1, 1), "host2": (1, 1)}) as lab:
            listener = lab.start("host2", 0, [*TRAFFIC, "listen"], stdout=subprocess.PIPE, text=True)
            self.addCleanup(listener.stdout.close)
            self.wait_for(lambda: lab.network.listening("host2") == [7000])
            there = lab.network.address("host2")
            for slow_end, rate in (("host1", 1e8), ("host2", 2e8), ("host1", 1e9)):
                for name in lab.hosts:
                    lab.network.shape(name, rate if name == slow_end else 2e9)
                parts = [self.send_rate(lab, listener, there) / rate for _ in range(3)]
                # 72 KiB of the bucket are sent without limit: at the lowest rate 1 % of what half a second sends.
                self.assertLess(max(parts), 1)
                self.assertGreater(max(parts), 0.85)
            self.assertLess(self.run_traffic(lab, "host1", "ping", there), 0.01)
            lab.network.cut("host1", "host2")
            self.run_traffic(lab, "host1", "ping", there, code=1)
            lab.network.reconnect("host1", "host2")
            self.run_traffic(lab, "host1", "ping", there)
            self.assertEqual(len(lab.leftovers(timeout=0)), 2)  # the listener and its port

    def test_full_links_change_their_speed(self):
        """Queued packets are still sent when a link becomes slower: none is too large for the new speed."""
        with cluster.Cluster({"host1": (1, 1), "host2": (1, 1)}) as lab:
            listener = lab.start("host2", 0, [*TRAFFIC, "listen"], stdout=subprocess.PIPE, text=True)
            self.addCleanup(listener.stdout.close)
            self.wait_for(lambda: lab.network.listening("host2") == [7000])
            lab.network.shape("host1", 1e9)
            sender = lab.start("host1", 0, [*TRAFFIC, "send", lab.network.address("host2"), "1"])
            time.sleep(0.5)
            lab.network.shape("host1", 1e8)
            self.assertEqual(sender.wait(timeout=20), 0)  # otherwise it has blocked for 5 s
            self.assertGreater(float(listener.stdout.readline()), 8e7)  # headers are 4 %

    def send_rate(self, lab, listener, there):
        self.run_traffic(lab, "host1", "send", there, "0.5")
        return float(listener.stdout.readline())

    def wait_for(self, condition):
        end = time.monotonic() + 5
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def test_hosts_have_names_memory_and_disks(self):
        with cluster.Cluster({"host1": (1, 1), "host2": (1, 1)}) as lab:
            for name in lab.hosts:
                child = lab.start(name, 0, ["sh", "-c", f"hostname; ls /dev/shm; touch /dev/shm/of-{name}"], stdout=subprocess.PIPE, text=True)
                self.assertEqual(child.communicate()[0], name + "\n")
            self.assertEqual(lab.leftovers(timeout=0), ["shared memory of-host1 on host1", "shared memory of-host2 on host2"])
            lab.small_disk(1 << 20)
            lab.fill_disk()
            with self.assertRaisesRegex(OSError, "No space left"), open(lab.shared / "file", "wb", buffering=0) as file:
                file.write(b"x")
            lab.free_disk()
            (lab.shared / "file").write_bytes(b"x")
        self.assertFalse(lab.folder.exists())
        self.assertEqual(lab.mounts(), [])

    def test_device_speeds(self):
        if not paces.are_available():
            self.skipTest("this machine has no cpu controller")
        with cluster.Cluster({"host1": (1, 0.2)}) as lab:
            parts = [self.run_traffic(lab, "host1", "spin", "0.6") for _ in range(3)]
            # The tolerance is one period of 10 ms of 600 ms, and what other processes may take.
            self.assertLess(max(parts), 0.22)
            self.assertGreater(max(parts), 0.17)
        self.assertFalse(paces.exists(lab.folder.name))

    def end_lab(self, number):
        """Starts a lab and sends it a signal. Returns its folder after the process on its host has ended."""
        if not paces.are_available():
            self.skipTest("this machine has no cpu controller")
        # A background shell ignores SIGINT, and so do its children.
        code = ("import cluster, signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nwith cluster.Cluster({'host1': (1, 0.5)}) as lab:\n"
                "  child = lab.start('host1', 0, ['sleep', '600'])\n  print(lab.folder, child.pid, flush=True)\n  time.sleep(600)\n")
        with subprocess.Popen([sys.executable, "-c", code], cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as lab:
            folder, child = lab.stdout.readline().split()
            lab.send_signal(number)
        self.wait_for(lambda: not self.is_alive(child))
        return pathlib.Path(folder)

    def is_alive(self, pid):
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def test_interrupted_lab_cleans_up(self):
        folder = self.end_lab(signal.SIGINT)
        self.assertFalse(folder.exists())
        self.assertFalse(paces.exists(folder.name))

    def test_next_lab_cleans_up_after_a_killed_one(self):
        folder = self.end_lab(signal.SIGKILL)
        with cluster.Cluster({"host1": (1, 1)}) as other:  # the next lab cleans up, as run.py --clear does
            self.assertFalse(folder.exists())
            self.assertFalse(paces.exists(folder.name))
            self.assertEqual(cluster.clear_leftovers(), [])
            self.assertTrue(other.folder.exists())


if __name__ == "__main__":
    if UNAVAILABLE:
        print(f"lab: skipped, this machine cannot run one: {UNAVAILABLE}", file=sys.stderr)
    unittest.main()
