"""An emulated cluster: hosts that are network namespaces, joined by a switch (a bridge in a namespace of its own), with links of a given speed
and devices of a given pace. Not what runs on it: training.py.

    host1 [eth0] --- [p0] switch [p1] --- [eth0] host2          eth0 and p0 each send at most at the link's speed (tc tbf)

Namespaces have no names and are held by open files of this process, mounts lie in a mount namespace of this process, and what it starts dies
with it: nothing of these is left, however it ends. What can be left are a folder and a control group; both carry the process's number, and
clear_leftovers() removes those of labs that are gone."""
import fcntl
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import linux
import paces

PREFIX = "optimus-lab-"
NOBODYS = "02:6c:61:62:ff:ff"  # an Ethernet address that no port has: what is sent there is lost silently, as on a cut cable
LARGEST_PACKET = 72 << 10  # that the kernel hands to a link: 64 KiB, and headers for each of the packets of 1500 bytes that these become


class Unavailable(Exception):
    """This machine cannot have a lab; one line says why."""


def check_available():
    if os.geteuid() != 0:
        raise Unavailable("needs root, for network namespaces")
    for program in ("ip", "tc", "bridge"):
        if shutil.which(program) is None:
            raise Unavailable(f"needs the program {program} (package iproute2)")
    try:
        with Network(["a", "b"]) as network:
            network.shape("a", 1e8)
    except OSError as error:
        raise Unavailable(f"no network namespace can be made: {error}") from error
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"no link can be made: {error.stderr.strip()}") from error


def has_netem():
    with Network(["a"]) as network:
        done = network.try_in(None, "tc qdisc add dev p0 root netem delay 1ms".split())
        return done.returncode == 0


class Network:
    """Hosts by name, all joined by one switch. Addresses are 10.77.0.1, 10.77.0.2, … in the order of names."""

    def __init__(self, names):
        self.names = list(names)
        self._files = {}
        try:
            for name in [None, *self.names]:
                self._files[name] = linux.new_network()
            self._join()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for handle in self._files.values():
            os.close(handle)
        self._files = {}

    def address(self, name):
        return f"10.77.0.{self.names.index(name) + 1}"

    def _hardware_address(self, name):
        return f"02:6c:61:62:00:{self.names.index(name) + 1:02x}"

    def _join(self):
        lines = ["link add switch type bridge", "link set switch up"]
        for i, name in enumerate(self.names):
            other = f"/proc/{os.getpid()}/fd/{self._files[name]}"
            lines += [f"link add p{i} type veth peer name eth0 address {self._hardware_address(name)} netns {other}", f"link set p{i} master switch up"]
        self._batch(None, "ip", lines)
        # Who is where is told, not learned: nothing is sent to ports that it is not for, and no lost question of a host delays a test.
        told = [f"link set dev p{i} flood off learning off" for i in range(len(self.names))]
        told += [f"fdb add {self._hardware_address(name)} dev p{i} master static" for i, name in enumerate(self.names)]
        self._batch(None, "bridge", told)
        for name in self.names:
            self._batch(name, "ip", ["link set lo up", "link set eth0 up", f"address add {self.address(name)}/24 dev eth0",
                                     *(self._neighbour(other, self._hardware_address(other)) for other in self.names if other != name)])

    def _neighbour(self, name, hardware_address):
        return f"neighbour replace {self.address(name)} lladdr {hardware_address} nud permanent dev eth0"

    def shape(self, name, bits_per_second, latency=0):
        """Both directions of a host's link. The bucket holds 1 ms or the largest packet, whichever is more: one that waits already and is larger than
        the new bucket would wait for ever, and everything behind it. What waits there is at most 50 ms of sending. Latency, in seconds, is half in
        each direction, where the kernel has netem."""
        burst = int(max(LARGEST_PACKET, bits_per_second / 8 * 0.001))
        limit = int(max(4 * burst, bits_per_second / 8 * 0.05))
        shaping = f"tbf rate {int(bits_per_second)}bit burst {burst} limit {limit}"
        for where, device in ((name, "eth0"), (None, f"p{self.names.index(name)}")):
            self.run_in(where, f"tc qdisc replace dev {device} root handle 1: {shaping}".split())
            if latency > 0:
                self.run_in(where, f"tc qdisc replace dev {device} parent 1: netem delay {int(latency * 5e5)}us limit 100000".split())

    def cut(self, one, other):
        """Packets between the two are lost, silently, in both directions."""
        self._set_path(one, other, lambda name: NOBODYS)

    def join_again(self, one, other):
        self._set_path(one, other, self._hardware_address)

    def _set_path(self, one, other, target):
        for here, there in ((one, other), (other, one)):
            self.run_in(here, ["ip", *self._neighbour(there, target(there)).split()])

    def _batch(self, name, program, lines):
        subprocess.run([program, "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True, capture_output=True, preexec_fn=lambda: linux.enter(self._files[name]))

    def try_in(self, name, words):
        return subprocess.run(words, text=True, capture_output=True, preexec_fn=lambda: linux.enter(self._files[name]))

    def run_in(self, name, words):
        """The output of a command on a host; None: on the switch."""
        done = self.try_in(name, words)
        done.check_returncode()
        return done.stdout

    def listening(self, name):
        """Ports at which somebody on the host listens."""
        rows = [line.split() for kind in ("tcp", "tcp6") for line in self.run_in(name, ["cat", f"/proc/self/net/{kind}"]).splitlines()[1:]]
        return sorted(int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A")

    def processes(self, name):
        """All processes on the host, whoever started them."""
        inode = os.fstat(self._files[name]).st_ino
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "ns" / "net").stat().st_ino == inode:
                    found.append(int(entry.name))
            except OSError:
                pass  # it has just ended
        return found

    def enter(self, name):
        """In a child that is about to become a program of the host."""
        linux.enter(self._files[name])


class Cluster:
    """Hosts with their devices, a folder that all share, and what is started there. Used as a context: whatever happens, it clears up.
    hosts: name -> (number of devices, speed of each as a part of one core; 1: as fast as it goes)."""

    def __init__(self, hosts):
        self.hosts = dict(hosts)
        self._children = []
        self._groups = {}  # (host, device) -> its control group
        self._host_groups = {}  # of hosts whose devices have one
        self._sorter = None
        self._disk = None

    def __enter__(self):
        clear_leftovers()
        linux.unshare(linux.NEW_MOUNTS)
        linux.mount("none", "/", flags=linux.PRIVATE | linux.RECURSIVE)
        self.folder = pathlib.Path(tempfile.gettempdir()) / f"{PREFIX}{os.getpid()}"
        self.folder.mkdir(mode=0o700)
        self._lock = open(self.folder / "lock", "w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.shared = self.folder / "shared"
        self.shared.mkdir()
        try:
            for name in self.hosts:  # a host's memory, as /dev/shm
                (self.folder / "memory" / name).mkdir(parents=True)
                linux.mount("none", self.folder / "memory" / name, "tmpfs")
            self.network = Network(self.hosts)
            self._set_paces()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for child in self._children:
            if child.poll() is None:
                child.kill()
                child.wait()
        if self._sorter is not None:
            self._sorter.stop()
        if hasattr(self, "network"):
            self.network.close()
        for mounted in self.mounts():
            linux.unmount(mounted)
        _remove(self.folder)
        self._lock.close()

    def devices(self):
        """(host, number on it) of each rank."""
        return [(name, device) for name, (count, _) in self.hosts.items() for device in range(count)]

    def _set_paces(self):
        for name, device in self.devices():
            speed = self.hosts[name][1]
            if speed == 1:
                continue
            if not paces.are_available():
                raise Unavailable("device speeds need the kernel's cpu controller (control groups at /sys/fs/cgroup)")
            lab = f"{PREFIX}{os.getpid()}"
            try:
                paces.make(lab)
                self._host_groups[name] = paces.make(lab, name)
                self._groups[name, device] = paces.make(lab, f"{name}-{device}")
            except OSError as error:
                raise Unavailable(f"no control group can be made: {error}") from error
            self.set_pace(name, device, speed)
        if self._groups:
            self._sorter = Sorter([(group, self._host_groups[name]) for (name, _), group in self._groups.items()])
            self._sorter.start()

    def set_pace(self, name, device, speed):
        """From now on. Only of devices that began with less than a whole core: others are in no group."""
        if (name, device) not in self._groups:
            raise Unavailable(f"{name}/{device} has a whole core; give its host a speed below 1, so that it can be changed")
        paces.set_pace(self._groups[name, device], speed)

    def group(self, name, device):
        """The control group of a device, or of what the host does beside its devices (None). None where it has no pace."""
        return self._groups.get((name, device)) if device is not None else self._host_groups.get(name)

    def start(self, name, device, words, environment=None, **how):
        """A process on a host, at the pace of one of its devices; None: at none, as the host's own business. It ends with this one at the latest."""
        group, parent = self.group(name, device), os.getpid()

        def become():
            if group is not None:
                paces.enter(group)
            self.network.enter(name)
            linux.unshare(linux.NEW_MOUNTS | linux.NEW_NAMES)
            pathlib.Path("/proc/sys/kernel/hostname").write_text(name)
            linux.mount(self.folder / "memory" / name, "/dev/shm", flags=linux.BIND)
            linux.end_with_parent(parent)

        child = subprocess.Popen([str(word) for word in words], env={**os.environ, **(environment or {})}, preexec_fn=become, **how)
        self._children.append(child)
        return child

    def small_disk(self, size):
        """From now on the shared folder is a file system of so many bytes."""
        linux.mount("none", self.shared, "tmpfs", options=f"size={size}")
        self._disk = self.shared

    def fill_disk(self):
        if self._disk is None:
            raise ValueError("fill_disk needs a disk of a given size: a whole machine's is not filled")
        with open(self._disk / ".filler", "ab", buffering=0) as filler:
            try:
                while True:
                    filler.write(b"x" * 65536)
            except OSError:
                pass

    def free_disk(self):
        (self.shared / ".filler").unlink(missing_ok=True)

    def mounts(self):
        """File systems in the lab's folder, the latest first."""
        lines = pathlib.Path("/proc/self/mounts").read_text().splitlines()
        return [place for place in (line.split()[1] for line in reversed(lines)) if place.startswith(str(self.folder) + "/")]

    def leftovers(self, patience=2.0):
        """What is still there of programs that have ended, in words; nothing is right."""
        end = time.monotonic() + patience
        while True:
            found = []
            for name in self.hosts:
                found += [f"process {pid} on {name}" for pid in self.network.processes(name)]
                found += [f"port {port} on {name}" for port in self.network.listening(name)]
            if not found or time.monotonic() > end:
                break
            time.sleep(0.02)
        for name in self.hosts:
            found += [f"shared memory {entry.name} on {name}" for entry in (self.folder / "memory" / name).iterdir()]
        return found


class Sorter(threading.Thread):
    """A device is the thread of a process that computes, its first. What its other threads do (connections, the run's store, watching, deciding) is the host's business, as
    it is where devices are cards: they leave the device's control group for the host's, soon after they begin."""

    def __init__(self, groups):
        super().__init__(daemon=True)
        self.groups = groups  # (of the device, of its host)
        self.is_over = threading.Event()

    def run(self):
        while not self.is_over.wait(0.05):
            for device, host in self.groups:
                for thread in paces.threads(device):
                    if not _is_first(thread):
                        try:
                            paces.move_thread(thread, host)
                        except OSError:
                            pass  # it has just ended

    def stop(self):
        self.is_over.set()
        self.join()


def _is_first(thread):
    """Of its process."""
    try:
        status = pathlib.Path(f"/proc/{thread}/status").read_text()
    except OSError:
        return True  # it has just ended
    return re.search(r"^Tgid:\s*(\d+)$", status, re.MULTILINE)[1] == thread


def _remove(folder):
    """A lab's folder and control groups."""
    paces.remove(folder.name)
    shutil.rmtree(folder, ignore_errors=True)


def clear_leftovers():
    """Of labs that were killed. Their numbers; those that still run hold a lock."""
    cleared = []
    for folder in pathlib.Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        if not re.fullmatch(r"\d+", folder.name.removeprefix(PREFIX)):
            continue
        try:
            with open(folder / "lock", "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(folder)
                cleared.append(int(folder.name.removeprefix(PREFIX)))
        except OSError:
            pass  # it runs, or is another's
    return cleared
