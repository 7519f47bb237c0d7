"""System calls that Python's library lacks before 3.12: namespaces, mounts, and a child process that ends with its parent. Linux only."""
import ctypes
import os
import signal
import socket

NEW_MOUNTS, NEW_NAMES, NEW_NETWORK = 0x00020000, 0x04000000, 0x40000000
BIND, RECURSIVE, PRIVATE = 4096, 16384, 1 << 18
DETACH = 2
SIGNAL_AT_PARENTS_END = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(what):
    _checked(_libc.unshare(what), "unshare")


def enter(namespace):
    """namespace: an open file of the namespace."""
    _checked(_libc.setns(namespace, 0), "setns")


def mount(source, target, kind="none", flags=0, options=""):
    _checked(_libc.mount(*(str(text).encode() for text in (source, target, kind)), ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def unmount(target):
    _checked(_libc.umount2(str(target).encode(), DETACH), f"umount {target}")


def end_with_parent(parent):
    """Called in a child process: sends it SIGKILL when the parent's thread that created it ends, for any reason."""
    _checked(_libc.prctl(SIGNAL_AT_PARENTS_END, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:  # the parent has already ended
        os._exit(1)


def new_network():
    """Returns an open file of a new network namespace, which exists as long as this file or a process in it. The caller's namespace is
    unchanged."""
    rows, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            unshare(NEW_NETWORK)
            handle = os.open("/proc/self/ns/net", os.O_RDONLY)
            socket.send_fds(theirs, [b"x"], [handle])
            code = 0
        finally:
            os._exit(code)
    theirs.close()
    try:
        _, handles, _, _ = socket.recv_fds(rows, 1, 1)
    finally:
        rows.close()
        os.waitpid(child, 0)
    if not handles:
        raise PermissionError("a network namespace cannot be created")
    os.set_inheritable(handles[0], False)
    return handles[0]
