"""How quick a device of the lab is: a control group of the kernel's cpu controller, of version 1 or 2 of these, whichever the machine has.

    /sys/fs/cgroup[/cpu]/optimus-lab-N/host1-0      the thread that computes on a device: its quota is the device's pace
                                      /host1        all else of that host

Used by cluster.py, which says who belongs where."""
import functools
import os
import pathlib
import signal
import time

LEAST_QUOTA_US = 1_000  # that the kernel allows: the shortest turns, so that a slow device is slow within a step, too


class _Version1:
    root = pathlib.Path("/sys/fs/cgroup/cpu")
    threads = "tasks"

    def is_there(self):
        return (self.root / "cpu.cfs_quota_us").exists() or (self.root / "cgroup.procs").exists()

    def make(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.shares").write_text("262144")  # the most; a process outside has 1024

    def set_quota(self, folder, quota, period):
        (folder / "cpu.cfs_quota_us").write_text("-1")  # until both are set: the kernel refuses some pairs
        (folder / "cpu.cfs_period_us").write_text(str(period))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))


class _Version2:
    root = pathlib.Path("/sys/fs/cgroup")
    threads = "cgroup.threads"

    def is_there(self):
        controllers = self.root / "cgroup.controllers"
        return controllers.exists() and "cpu" in controllers.read_text().split()

    def make(self, folder):
        """Threads of one process are in several of the lab's groups, so these are threaded, below one that is not."""
        is_new = not folder.exists()
        (folder.parent / "cgroup.subtree_control").write_text("+cpu")
        folder.mkdir(exist_ok=True)
        if is_new and folder.parent != self.root:
            try:
                (folder / "cgroup.type").write_text("threaded")
            except OSError:
                folder.rmdir()
                raise
        (folder / "cpu.weight").write_text("10000")  # the most; a process outside has 100

    def set_quota(self, folder, quota, period):
        (folder / "cpu.max").write_text(f"{quota} {period}")


_KIND = next((kind for kind in (_Version1(), _Version2()) if kind.is_there()), None)


@functools.cache
def are_available():
    """Tried, not only looked for: in a container the controller may be there and not be ours."""
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
    """The group of a lab, or one in it. Before all else that runs on this machine: a device has its pace whatever the others do, and no more."""
    folder = _KIND.root / lab / (name or "")
    _KIND.make(folder)
    return folder


def set_pace(group, speed):
    """speed: a part of one core, from now on."""
    _KIND.set_quota(group, LEAST_QUOTA_US, max(LEAST_QUOTA_US, int(LEAST_QUOTA_US / speed)))


def enter(group):
    """This process, with all its threads."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def threads(group):
    return (group / _KIND.threads).read_text().split()


def move_thread(thread, group):
    """Throws OSError when it has just ended."""
    (group / _KIND.threads).write_text(thread)


def is_there(lab):
    return _KIND is not None and (_KIND.root / lab).is_dir()


def remove(lab):
    """A lab's groups, and what still runs in them."""
    if not is_there(lab):
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
        except OSError:  # a process in it is not yet gone
            if time.monotonic() > end:
                return
            time.sleep(0.01)


def _processes(group):
    """A threaded group of version 2 does not tell its processes; ending one of its threads ends the process, too."""
    is_threaded = (group / "cgroup.type").exists() and (group / "cgroup.type").read_text().strip() == "threaded"
    return [int(one) for one in (group / ("cgroup.threads" if is_threaded else "cgroup.procs")).read_text().split()]
