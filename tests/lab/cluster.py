"""An emulated cluster: hosts are network namespaces, connected by a switch (a bridge in its own namespace), with links of a given speed and
devices of a given speed. What runs on the cluster is the task of training.py.

    host1 [eth0] --- [p0] switch [p1] --- [eth0] host2          eth0 and p0 each send at most at the link's speed (tc tbf)

Namespaces have no names and are kept alive by open files of this process; mounts are in a mount namespace of this process; and child
processes are killed with it. So nothing of these remains, however the process ends. A folder and a control group can remain; both contain
the process id in their names, and clear_leftovers() removes those of labs whose process has ended."""
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
UNREACHABLE = "02:6c:61:62:ff:ff"  # an Ethernet address that no port has: packets to it are lost silently, as on a cut cable
LARGEST_PACKET = 72 << 10  # largest packet that the kernel passes to a link: 64 KiB, plus headers for each of its packets of 1500 bytes


class Unavailable(Exception):
    """This machine cannot run a lab; the message is one line with the reason."""


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
        raise Unavailable(f"a network namespace cannot be created: {error}") from error
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"a link cannot be created: {error.stderr.strip()}") from error


def has_netem():
    with Network(["a"]) as network:
        result = network.try_in(None, "tc qdisc add dev p0 root netem delay 1ms".split())
        return result.returncode == 0


class Network:
    """Hosts by name, all connected to one switch. Addresses are 10.77.0.1, 10.77.0.2, … in the order of the names."""

    def __init__(self, names):
        self.names = list(names)
        self._files = {}
        try:
            for name in [None, *self.names]:
                self._files[name] = linux.new_network()
            self._connect_hosts()
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

    def _connect_hosts(self):
        lines = ["link add switch type bridge", "link set switch up"]
        for i, name in enumerate(self.names):
            other = f"/proc/{os.getpid()}/fd/{self._files[name]}"
            lines += [f"link add p{i} type veth peer name eth0 address {self._hardware_address(name)} netns {other}", f"link set p{i} master switch up"]
        self._batch(None, "ip", lines)
        # Addresses are configured, not learned: no packet is flooded to other ports, and no lost ARP request delays a test.
        entries = [f"link set dev p{i} flood off learning off" for i in range(len(self.names))]
        entries += [f"fdb add {self._hardware_address(name)} dev p{i} master static" for i, name in enumerate(self.names)]
        self._batch(None, "bridge", entries)
        for name in self.names:
            self._batch(name, "ip", ["link set lo up", "link set eth0 up", f"address add {self.address(name)}/24 dev eth0",
                                     *(self._neighbour(other, self._hardware_address(other)) for other in self.names if other != name)])

    def _neighbour(self, name, hardware_address):
        return f"neighbour replace {self.address(name)} lladdr {hardware_address} nud permanent dev eth0"

    def shape(self, name, bits_per_second, latency=0):
        """Limits both directions of a host's link. The bucket holds 1 ms of sending or the largest packet, whichever is more: a queued
        packet that is larger than a new bucket would block the queue forever. The queue holds at most 50 ms of sending. The latency, in
        seconds, is applied half in each direction, if the kernel has netem."""
        burst = int(max(LARGEST_PACKET, bits_per_second / 8 * 0.001))
        limit = int(max(4 * burst, bits_per_second / 8 * 0.05))
        shaping = f"tbf rate {int(bits_per_second)}bit burst {burst} limit {limit}"
        for where, device in ((name, "eth0"), (None, f"p{self.names.index(name)}")):
            self.run_in(where, f"tc qdisc replace dev {device} root handle 1: {shaping}".split())
            if latency > 0:
                self.run_in(where, f"tc qdisc replace dev {device} parent 1: netem delay {int(latency * 5e5)}us limit 100000".split())

    def cut(self, one, other):
        """Drops packets between the two hosts silently, in both directions."""
        self._set_path(one, other, lambda name: UNREACHABLE)

    def reconnect(self, one, other):
        self._set_path(one, other, self._hardware_address)

    def _set_path(self, one, other, target):
        for here, there in ((one, other), (other, one)):
            self.run_in(here, ["ip", *self._neighbour(there, target(there)).split()])

    def _batch(self, name, program, lines):
        subprocess.run([program, "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True, capture_output=True, preexec_fn=lambda: linux.enter(self._files[name]))

    def try_in(self, name, args):
        return subprocess.run(args, text=True, capture_output=True, preexec_fn=lambda: linux.enter(self._files[name]))

    def run_in(self, name, args):
        """Returns the output of a command on a host, or on the switch if name is None."""
        result = self.try_in(name, args)
        result.check_returncode()
        return result.stdout

    def listening(self, name):
        """Returns the ports on the host that have a listening socket."""
        rows = [line.split() for kind in ("tcp", "tcp6") for line in self.run_in(name, ["cat", f"/proc/self/net/{kind}"]).splitlines()[1:]]
        return sorted(int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A")

    def processes(self, name):
        """Returns all processes on the host, whichever process started them."""
        inode = os.fstat(self._files[name]).st_ino
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "ns" / "net").stat().st_ino == inode:
                    found.append(int(entry.name))
            except OSError:
                pass  # the process has just ended
        return found

    def enter(self, name):
        """Moves the calling process to the host. For a child before exec."""
        linux.enter(self._files[name])


class Cluster:
    """Hosts with their devices, a shared folder, and the processes started there. Use it as a context manager: it always cleans up.
    hosts: name -> (number of devices, speed of each device as a fraction of one core; 1: unlimited)."""

    def __init__(self, hosts):
        self.hosts = dict(hosts)
        self._children = []
        self._groups = {}  # (host, device) -> control group of the device
        self._host_groups = {}  # control groups of hosts whose devices have one
        self._thread_mover = None
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
            for name in self.hosts:  # each host has its own /dev/shm
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
        if self._thread_mover is not None:
            self._thread_mover.stop()
        if hasattr(self, "network"):
            self.network.close()
        for mounted in self.mounts():
            linux.unmount(mounted)
        _remove(self.folder)
        self._lock.close()

    def devices(self):
        """Returns (host, device number on the host) for each rank."""
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
                raise Unavailable(f"a control group cannot be created: {error}") from error
            self.set_pace(name, device, speed)
        if self._groups:
            self._thread_mover = ThreadMover([(group, self._host_groups[name]) for (name, _), group in self._groups.items()])
            self._thread_mover.start()

    def set_pace(self, name, device, speed):
        """Changes the speed of a device from now on. Only devices that started with less than a whole core have a control group."""
        if (name, device) not in self._groups:
            raise Unavailable(f"{name}/{device} has a whole core; set a speed below 1 for its host, so that it can be changed")
        paces.set_pace(self._groups[name, device], speed)

    def group(self, name, device):
        """Returns the control group of a device, or of the host's other work (device None). None: the speed is not limited."""
        return self._groups.get((name, device)) if device is not None else self._host_groups.get(name)

    def start(self, name, device, args, environment=None, **options):
        """Starts a process on a host, at the speed of one of its devices; device None: as other work of the host. It is killed when this
        process ends."""
        group, parent = self.group(name, device), os.getpid()

        def prepare_child():
            if group is not None:
                paces.enter(group)
            self.network.enter(name)
            linux.unshare(linux.NEW_MOUNTS | linux.NEW_NAMES)
            pathlib.Path("/proc/sys/kernel/hostname").write_text(name)
            linux.mount(self.folder / "memory" / name, "/dev/shm", flags=linux.BIND)
            linux.end_with_parent(parent)

        child = subprocess.Popen([str(word) for word in args], env={**os.environ, **(environment or {})}, preexec_fn=prepare_child, **options)
        self._children.append(child)
        return child

    def small_disk(self, size):
        """Mounts a file system of this many bytes as the shared folder."""
        linux.mount("none", self.shared, "tmpfs", options=f"size={size}")
        self._disk = self.shared

    def fill_disk(self):
        if self._disk is None:
            raise ValueError("fill_disk needs a scenario with a disk size; the disk of the machine is never filled")
        with open(self._disk / ".filler", "ab", buffering=0) as filler:
            try:
                while True:
                    filler.write(b"x" * 65536)
            except OSError:
                pass

    def free_disk(self):
        (self.shared / ".filler").unlink(missing_ok=True)

    def mounts(self):
        """Returns the file systems mounted in the lab's folder, the latest first."""
        lines = pathlib.Path("/proc/self/mounts").read_text().splitlines()
        return [device_name for device_name in (line.split()[1] for line in reversed(lines)) if device_name.startswith(str(self.folder) + "/")]

    def leftovers(self, timeout=2.0):
        """Returns descriptions of what ended programs have left behind. Empty: nothing."""
        end = time.monotonic() + timeout
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


class ThreadMover(threading.Thread):
    """Moves helper threads out of the devices' control groups. A device is the main thread of a process, which computes. The other
    threads (connections, the run's store, monitoring, planning) belong to the host, as on machines with GPUs: they are moved to the
    host's control group soon after they start."""

    def __init__(self, groups):
        super().__init__(daemon=True)
        self.groups = groups  # (group of the device, group of its host)
        self.should_stop = threading.Event()

    def run(self):
        while not self.should_stop.wait(0.05):
            for device, host in self.groups:
                for thread in paces.threads(device):
                    if not is_main_thread(thread):
                        try:
                            paces.move_thread(thread, host)
                        except OSError:
                            pass  # the thread has just ended

    def stop(self):
        self.should_stop.set()
        self.join()


def is_main_thread(thread):
    """Whether the thread is the main thread of its process."""
    try:
        status = pathlib.Path(f"/proc/{thread}/status").read_text()
    except OSError:
        return True  # the thread has just ended
    return re.search(r"^Tgid:\s*(\d+)$", status, re.MULTILINE)[1] == thread


def _remove(folder):
    """Removes the folder and the control groups of a lab."""
    paces.remove(folder.name)
    shutil.rmtree(folder, ignore_errors=True)


def clear_leftovers():
    """Removes what killed labs have left and returns their process ids. Active labs hold a lock."""
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
            pass  # an active lab, or a folder of another user
    return cleared
