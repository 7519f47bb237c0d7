"""The speeds of the lab's devices: control groups of the kernel's cpu controller, version 1 or 2, whichever the machine has.

    /sys/fs/cgroup[/cpu]/optimus-lab-N/host1-0      the computing thread of a device: its quota is the device's speed
                                      /host1        all other threads of that host

Used by cluster.py, which assigns threads to groups."""
import functools
import os
import pathlib
import signal
import time

MIN_QUOTA_US = 1_000  # the smallest quota that the kernel allows: with short periods, a slow device is slow within a step, too


class _Version1:
    root = pathlib.Path("/sys/fs/cgroup/cpu")
    threads = "tasks"

    def exists(self):
        return (self.root / "cpu.cfs_quota_us").exists() or (self.root / "cgroup.procs").exists()

    def make(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.shares").write_text("262144")  # the maximum; a process outside has 1024

    def set_quota(self, folder, quota, period):
        (folder / "cpu.cfs_quota_us").write_text("-1")  # no limit until both are set: the kernel rejects some pairs
        (folder / "cpu.cfs_period_us").write_text(str(period))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))


class _Version2:
    root = pathlib.Path("/sys/fs/cgroup")
    threads = "cgroup.threads"

    def exists(self):
        controllers = self.root / "cgroup.controllers"
        return controllers.exists() and "cpu" in controllers.read_text().split()

    def make(self, folder):
        """The threads of one process are in several of the lab's groups, so these groups are threaded, below a group that is not."""
        is_new = not folder.exists()
        (folder.parent / "cgroup.subtree_control").write_text("+cpu")
        folder.mkdir(exist_ok=True)
        if is_new and folder.parent != self.root:
            try:
                (folder / "cgroup.type").write_text("threaded")
            except OSError:
                folder.rmdir()
                raise
        (folder / "cpu.weight").write_text("10000")  # the maximum; a process outside has 100

    def set_quota(self, folder, quota, period):
        (folder / "cpu.max").write_text(f"{quota} {period}")


_KIND = next((kind for kind in (_Version1(), _Version2()) if kind.exists()), None)


@functools.cache
def are_available():
    """Creates a group to find out: in a container, the controller may exist but not be writable."""
    if _KIND is None:
        return False
    trial = f"optimus-lab-trial-{os.getpid()}"
    try:
        make(trial)
        set_pace(make(trial, "device"), 0.5)
        return True
    except OSError:
        return False
    finally:
        remove(trial)


def make(lab, name=None):
    """Creates the group of a lab, or a group in it. It has the highest weight on this machine, so a device has its speed whatever else
    runs, and no more."""
    folder = _KIND.root / lab / (name or "")
    _KIND.make(folder)
    return folder


def set_pace(group, speed):
    """speed: fraction of one core, from now on."""
    _KIND.set_quota(group, MIN_QUOTA_US, max(MIN_QUOTA_US, int(MIN_QUOTA_US / speed)))


def enter(group):
    """Moves this process with all its threads into the group."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def threads(group):
    return (group / _KIND.threads).read_text().split()


def move_thread(thread, group):
    """Throws OSError if the thread has just ended."""
    (group / _KIND.threads).write_text(thread)


def exists(lab):
    return _KIND is not None and (_KIND.root / lab).is_dir()


def remove(lab):
    """Removes a lab's groups and kills the processes that still run in them."""
    if not exists(lab):
        return
    for group in [*(path for path in (_KIND.root / lab).iterdir() if path.is_dir()), _KIND.root / lab]:
        _remove_group(group)


def _remove_group(group):
    end = time.monotonic() + 2
    while True:
        try:
            for pid in _processes(group):
                os.kill(pid, signal.SIGKILL)
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:  # a process in it has not ended yet
            if time.monotonic() > end:
                return
            time.sleep(0.01)


def _processes(group):
    """A threaded group of version 2 does not list its processes; killing one of their threads ends the process, too."""
    is_threaded = (group / "cgroup.type").exists() and (group / "cgroup.type").read_text().strip() == "threaded"
    return [int(one) for one in (group / ("cgroup.threads" if is_threaded else "cgroup.procs")).read_text().split()]
