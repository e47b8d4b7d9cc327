"""Does a process's standard input still have a writer? The kernel's word, without reading a byte of it.

A pipe is opened once more through /proc/PID/fd/0 and polled: POLLHUP means that no write end is open anywhere
(pipe(7), poll(2)). A UNIX socket is asked for by its inode over NETLINK_SOCK_DIAG (sock_diag(7)): a peer of 0 or a
receiving side that is shut down means that nobody can write. Where the netlink family is missing, the socket is
taken over with pidfd_getfd(2) and polled.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct

_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_SHOW_PEER = 4  # UDIAG_SHOW_PEER, linux/unix_diag.h
_ATTR_PEER, _ATTR_SHUTDOWN = 2, 6
_RCV_SHUTDOWN = 1
_PIDFD_GETFD = 438
_NO_COOKIE = 0xFFFFFFFF


def stdin_of(pid: int) -> tuple[str, int | None]:
    """What descriptor 0 is: ("pipe" or "socket", its inode), ("other", None), or ("unknown", None)."""
    try:
        link = os.readlink(f"/proc/{pid}/fd/0")
    except FileNotFoundError:
        return "other", None
    except OSError:
        return "unknown", None
    for kind in ("pipe", "socket"):
        if link.startswith(f"{kind}:[") and link.endswith("]") and link[len(kind) + 2 : -1].isdigit():
            return kind, int(link[len(kind) + 2 : -1])
    return "other", None


def has_writer(pid: int) -> bool | None:
    """Can anybody still write to the process's stdin? None: it is no pipe or socket, or could not tell."""
    kind, inode = stdin_of(pid)
    if inode is None:
        return None
    answer = _pipe_writer(pid) if kind == "pipe" else _socket_writer(pid, inode)
    # The descriptor may have been replaced, or the pid reused, between the two looks.
    return answer if stdin_of(pid) == (kind, inode) else None


def holders(inode: int, pids: list[int]) -> list[int] | None:
    """Which of `pids` hold a write end of pipe `inode`; None if one of them can't be looked into and none was found.

    The owner's bits of a link in /proc/PID/fd tell how the file was opened (proc(5)).
    """
    found, blind = [], False
    wanted = f"pipe:[{inode}]"
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except FileNotFoundError:
            continue
        except OSError:
            blind = True
            continue
        if any(_is_write_end(f"/proc/{pid}/fd/{name}", wanted) for name in names):
            found.append(pid)
    return None if blind and not found else found


def _is_write_end(path: str, wanted: str) -> bool:
    try:
        return os.readlink(path) == wanted and bool(os.lstat(path).st_mode & 0o200)
    except OSError:
        return False


def _pipe_writer(pid: int) -> bool | None:
    try:
        fd = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return not _polled(fd) & select.POLLHUP
    finally:
        os.close(fd)


def _socket_writer(pid: int, inode: int) -> bool | None:
    try:
        return _ask_kernel(inode)
    except OSError:
        return _taken_over(pid)


def _ask_kernel(inode: int) -> bool:
    """Raises OSError where the kernel does not know the socket, or can't be asked."""
    request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, inode, _SHOW_PEER, _NO_COOKIE, _NO_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as netlink:
        netlink.settimeout(1.0)
        netlink.send(struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, 1, 1, 0) + request)
        answer = netlink.recv(8192)
    length, kind = struct.unpack_from("=IH", answer)
    if kind != _SOCK_DIAG_BY_FAMILY:
        raise OSError("no such socket")
    values = _attributes(answer[32:length])
    peer = values.get(_ATTR_PEER, b"")
    closed = bool(values.get(_ATTR_SHUTDOWN, b"\0")[0] & _RCV_SHUTDOWN)
    return len(peer) == 4 and struct.unpack("=I", peer)[0] != 0 and not closed


def _attributes(data: bytes) -> dict[int, bytes]:
    """Netlink attributes (netlink(7)): length, type, payload, padded to 4 bytes."""
    found, at = {}, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            break
        found[kind] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def _taken_over(pid: int) -> bool | None:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        fd = int(ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, 0, 0))
    finally:
        os.close(pidfd)
    if fd < 0:
        return None
    try:
        return not _polled(fd) & (select.POLLHUP | select.POLLRDHUP)
    finally:
        os.close(fd)


def _polled(fd: int) -> int:
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLRDHUP)
    return sum(events for _, events in poll.poll(0))
