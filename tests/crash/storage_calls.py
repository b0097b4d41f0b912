"""Storage that fails under a real process, at one chosen call: for code that no wrapper of files can reach.

RocksDB writes its files itself, from its own threads. So the process under test asks the kernel to stop each
of its calls that changes storage and to ask us (seccomp's user notification: no privilege, no compiler, only
Linux from 5.5 on). `Storage` answers, counts the calls below one folder, and at one of them does what its
Fault says:

| kind | what happens |
|---|---|
| failed | this one call fails with EIO; a sync that failed has also lost what it was to make durable |
| short | the call is a write: half of it is written; then the disk is full |
| full | from here on nothing that takes space is possible (ENOSPC) |
| kill | the process dies before the call |
| power | it dies, and with it goes what was not synced (`lose`) |

What a power loss takes, as the seed says: of every file a piece at the end that was not synced, or it reads
as zeros; of what was done to the names in a folder since that folder was synced, a piece at the end.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import resource
import select
import shutil
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.support.folders import socket_address

KINDS = ("failed", "short", "full", "kill", "power")
_X86 = {
    1: "write", 18: "pwrite", 20: "writev", 296: "writev", 74: "sync", 75: "sync", 77: "truncate",
    285: "allocate", 2: "open", 257: "openat", 82: "rename", 264: "renameat", 316: "renameat", 86: "link",
    265: "linkat", 87: "remove", 263: "removeat", 84: "remove", 83: "mkdir", 258: "mkdirat", 326: "copy",
    40: "sendfile", 306: "syncfs",
}  # fmt: skip
_ARM = {
    64: "write", 68: "pwrite", 66: "writev", 70: "writev", 82: "sync", 83: "sync", 46: "truncate",
    47: "allocate", 56: "openat", 38: "renameat", 276: "renameat", 37: "linkat", 35: "removeat",
    34: "mkdirat", 285: "copy", 71: "sendfile", 267: "syncfs",
}  # fmt: skip
_MACHINES = {"x86_64": (317, 0xC000003E, _X86), "aarch64": (277, 0xC00000B7, _ARM)}
_PAGE = 4096  # bytes
_START_S = 60.0  # until a process calls
_NO_NEW_PRIVILEGES, _WITH_FILTER, _NEW_LISTENER = 38, 1, 8
_ALLOW, _NOTIFY, _CONTINUE = 0x7FFF0000, 0x7FC00000, 1
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTIFICATION, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_BY_DESCRIPTOR = {
    "write": "write", "pwrite": "write", "writev": "write", "sync": "sync", "truncate": "truncate",
    "allocate": "allocate", "copy": "copy", "sendfile": "copy",
    "syncfs": "sync disk",
}  # fmt: skip
_TAKES_SPACE = frozenset(("write", "create", "link", "mkdir", "allocate", "copy"))


def machine() -> tuple[int, int, dict[int, str]]:
    """The number of `seccomp`, the architecture's mark, and the calls that are stopped."""
    try:
        return _MACHINES[platform.machine()]
    except KeyError:
        raise RuntimeError(
            f"storage faults are injected on Linux on {' and '.join(_MACHINES)}, not on {platform.machine()}"
        ) from None


def give_in(path: str) -> None:
    """From now on this process, and each thread that it begins, asks whoever listens at the socket `path`."""
    seccomp, mark, calls = machine()
    rows = [(0x20, 0, 0, 4), (0x15, 0, len(calls) + 1, mark), (0x20, 0, 0, 0)]
    rows += [(0x15, len(calls) - index, 0, number) for index, number in enumerate(calls)]
    rows += [(0x06, 0, 0, _ALLOW), (0x06, 0, 0, _NOTIFY)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in rows))
    header = struct.pack("@HP", len(rows), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    line = socket.socket(socket.AF_UNIX)
    with socket_address(Path(path)) as address:
        line.connect(address)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    listener = libc.syscall(seccomp, _WITH_FILTER, _NEW_LISTENER, header)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "the kernel does not let a process be watched (Linux 5.5 does)")
    socket.send_fds(line, [b"1"], [listener])
    os.close(listener)
    line.recv(1)  # somebody answers
    line.close()


class Fault(NamedTuple):
    """`kind` at the call number `point`, counted from 1; 0: none."""

    kind: str
    point: int


class Call(NamedTuple):
    """One call below the folder. `what`: write, sync, create, rename, link, remove, mkdir, truncate, allocate
    or copy. `to`: of renames and links."""

    what: str
    path: str
    to: str = ""
    size: int = 0
    at: int = 0  # where a write begins


class Storage:
    """What one process finds below `folder`, until it and its threads are gone."""

    def __init__(self, folder: Path, fault: Fault, seed: int = 0, mend_s: float = float("inf")) -> None:
        """`mend_s`: there is space again so long after the disk was full."""
        self.folder = str(folder)
        self.fault = fault
        self.calls: list[Call] = []
        self.struck: Call | None = None  # the call that the fault met
        self._random = Random(f"{seed} {fault}")
        self._removed = Path(f"{folder}.kept")  # names that were removed, in case that is undone
        self._synced = {entry.stat().st_ino: entry.stat().st_size for entry in _files(folder)}
        self._undo: list[tuple[str, Callable[[], None]]] = []
        self._dropped: list[tuple[str, int, int]] = []
        self._mend_s = mend_s
        self._full_until = float("-inf")  # monotonic
        self._limited = 0
        self._pid = 0

    def listen(self, path: Path) -> socket.socket:
        """Where the process is to call."""
        self._removed.mkdir(exist_ok=True)
        line = socket.socket(socket.AF_UNIX)
        with socket_address(path) as address:
            line.bind(address)
        line.listen(1)
        return line

    def serve(self, line: socket.socket, pid: int, seconds: float, after_s: float | None = None) -> None:
        """Answer until the process is gone. Raises TimeoutError when that takes too long, and kills it.

        With `after_s` it is one that does not end by itself: it is killed so long after the fault, or when
        the seconds are over.
        """
        self._pid = pid
        line.settimeout(_START_S)
        near, _ = line.accept()
        with near, line:
            near.settimeout(_START_S)
            _, [listener], _, _ = socket.recv_fds(near, 1, 1)
            near.send(b"1")
        give_up = time.monotonic() + seconds
        ready = select.poll()
        ready.register(listener, select.POLLIN)
        try:
            while (remaining_s := give_up - time.monotonic()) > 0:
                for _, events in ready.poll(remaining_s * 1_000):
                    if not events & select.POLLIN:
                        return
                    self._answer(listener)
                if after_s is not None and self.struck is not None:
                    give_up, after_s = min(give_up, time.monotonic() + after_s), None
                    seconds = 0
        finally:
            os.close(listener)
        os.kill(pid, signal.SIGKILL)
        if not seconds or after_s is not None:
            return
        raise TimeoutError(f"the process goes on for ever after {self.fault} at {self.struck}")

    def _answer(self, listener: int) -> None:
        notification = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, notification)
            key, thread, _, number, _, _, *arguments = _NOTIFICATION.unpack(notification)
            code = self._decide(thread, number, arguments)
            fcntl.ioctl(listener, _SEND, _ANSWER.pack(key, 0, -code, 0 if code else _CONTINUE))
        except FileNotFoundError:
            return  # it was killed meanwhile

    # --- one call

    def _decide(self, thread: int, number: int, arguments: list[int]) -> int:
        """The error to answer, 0: let it be done."""
        if self._limited == thread:
            self._limited = 0
            resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        try:
            call = self._call(thread, machine()[2][number], arguments)
        except (OSError, ValueError):
            return 0  # no path, or none that is there
        if call is None:
            return 0
        self.calls.append(call)
        if len(self.calls) == self.fault.point:
            code = self._strike(call, thread)
        else:
            code = errno.ENOSPC if call.what in _TAKES_SPACE and self._is_full() else 0
        if not code:
            self._record_undo(call)
        return code

    def _is_full(self) -> bool:
        return time.monotonic() < self._full_until

    def _strike(self, call: Call, thread: int) -> int:
        self.struck = call
        kind = self.fault.kind
        if kind in ("kill", "power"):
            os.kill(self._pid, signal.SIGKILL)
            return errno.EIO
        if kind == "failed":
            if call.what == "sync" and os.path.isfile(call.path):
                synced_bytes = self._synced.get(os.stat(call.path).st_ino, 0)
                self._dropped.append((call.path, synced_bytes, os.stat(call.path).st_size))
            return errno.EIO if call.what != "remove" else 0
        self._full_until = time.monotonic() + self._mend_s
        if kind == "short" and call.what == "write" and call.size > 1:
            self._limited = thread
            limit = call.at + call.size // 2
            resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        return 0

    def _call(self, thread: int, name: str, arguments: list[int]) -> Call | None:
        proc = f"/proc/{thread}"
        if name in _BY_DESCRIPTOR:
            descriptor = arguments[2] if name == "copy" else arguments[0]
            path = os.readlink(f"{proc}/fd/{descriptor}")
            if not self._inside(path):
                return None
            if name == "write":
                return Call("write", path, size=arguments[2], at=_position(proc, descriptor))
            if name == "pwrite":
                return Call("write", path, size=arguments[2], at=arguments[3])
            return Call(_BY_DESCRIPTOR[name], path)
        if name in ("open", "openat"):
            index = 1 if name == "open" else 2
            if not arguments[index] & os.O_CREAT:
                return None
        names = [self._path(proc, *one) for one in _path_arguments(name, arguments)]
        if not any(self._inside(path) for path in names):
            return None
        what = name.removesuffix("at")
        if what in ("open", "mkdir") and os.path.exists(names[0]):
            return None
        what = "create" if what == "open" else what
        return Call(what, names[0], names[1] if len(names) > 1 else "")

    def _inside(self, path: str) -> bool:
        return path.startswith(self.folder + "/") or path == self.folder

    def _path(self, proc: str, folder: int, address: int) -> str:
        link = b""
        with open(f"{proc}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            while b"\0" not in link:  # page by page: the one after the text's last need not be there
                link += memory.read(_PAGE - (address + len(link)) % _PAGE)
        text = os.fsdecode(link.partition(b"\0")[0])
        if text.startswith("/"):
            return text
        here = ctypes.c_int(folder & 0xFFFFFFFF).value
        return os.path.join(os.readlink(f"{proc}/cwd" if here == -100 else f"{proc}/fd/{here}"), text)

    # --- what is durable

    def _record_undo(self, call: Call) -> None:
        """What a power loss could undo."""
        path = call.path
        if call.what == "sync":
            if os.path.isdir(path):
                self._undo = [one for one in self._undo if one[0] != path]
            else:
                self._synced[os.stat(path).st_ino] = os.stat(path).st_size
        elif call.what == "sync disk":
            self._undo.clear()
            self._synced = {entry.stat().st_ino: entry.stat().st_size for entry in _files(Path(self.folder))}
        elif call.what in ("create", "mkdir"):
            self._undo.append((os.path.dirname(path), lambda: _remove(path)))
        elif call.what == "link":
            self._undo.append((os.path.dirname(call.to), lambda: _remove(call.to)))
        elif call.what == "remove" and os.path.isfile(path):
            link = self._keep(path)
            self._undo.append((os.path.dirname(path), lambda: _put_back(link, path)))
        elif call.what == "rename" and os.path.exists(path):
            link = self._keep(call.to) if os.path.isfile(call.to) else None
            self._moved(path, call.to)
            self._undo.append((os.path.dirname(call.to), lambda: _rename_back(path, call.to, link)))

    def _moved(self, path: str, to: str) -> None:
        """A folder has another name: a sync of that makes durable what was done in it before."""
        self._undo = [
            (to + folder[len(path) :] if f"{folder}/".startswith(f"{path}/") else folder, undo)
            for folder, undo in self._undo
        ]

    def _keep(self, path: str) -> Path:
        link = self._removed / str(len(self.calls))
        os.link(path, link)
        return link

    def lose(self) -> None:
        """What the fault has cost. Call it when the process is gone."""
        for path, start, end in self._dropped:
            if os.path.exists(path):
                _zero(path, start, min(end, os.path.getsize(path)))
        if self.fault.kind == "power" and self.struck is not None:
            keep = self._random.randint(0, len(self._undo))
            for _, undo in reversed(self._undo[keep:]):
                undo()
            for entry in _files(Path(self.folder)):
                self._lose_end(entry)
        shutil.rmtree(self._removed)

    def _lose_end(self, entry: os.DirEntry[str]) -> None:
        synced, size = self._synced.get(entry.stat().st_ino, 0), entry.stat().st_size
        if size <= synced:
            return
        keep = self._random.choice((synced, self._random.randint(synced, size), size))
        if self._random.random() < 0.3:
            _zero(entry.path, keep, size)
        else:
            os.truncate(entry.path, keep)


def _path_arguments(name: str, arguments: list[int]) -> list[tuple[int, int]]:
    """(folder's descriptor, address of the text) of each path."""
    here = -100
    if name in ("open", "mkdir", "remove"):
        return [(here, arguments[0])]
    if name in ("rename", "link"):
        return [(here, arguments[0]), (here, arguments[1])]
    if name in ("renameat", "linkat"):
        return [(arguments[0], arguments[1]), (arguments[2], arguments[3])]
    return [(arguments[0], arguments[1])]


def _position(proc: str, descriptor: int) -> int:
    with open(f"{proc}/fdinfo/{descriptor}", encoding="ascii") as file:
        return int(file.readline().split()[1])


def _files(folder: Path) -> list[os.DirEntry[str]]:
    files = []
    for path, _, _ in os.walk(folder):
        with os.scandir(path) as entries:
            files += [entry for entry in entries if entry.is_file(follow_symlinks=False)]
    return files


def _zero(path: str, start: int, end: int) -> None:
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(bytes(max(end - start, 0)))


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.unlink(path)


def _put_back(link: Path, path: str) -> None:
    if os.path.isdir(os.path.dirname(path)):
        link.replace(path)


def _rename_back(path: str, to: str, link: Path | None) -> None:
    if os.path.exists(to) and os.path.isdir(os.path.dirname(path)):
        os.replace(to, path)
    if link is not None:
        _put_back(link, to)
