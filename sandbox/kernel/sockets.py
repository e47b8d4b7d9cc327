"""Which sockets some processes listen on, and who else is connected to them: TCP and unix.

Sources: proc(5) (/proc/PID/fd, /proc/PID/ns), proc_net_tcp.rst of the kernel's documentation, netlink(7), sock_diag(7).
One socket may have many holders, of which psutil tells one, and of a unix socket not its peer: both are read here.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from sandbox.kernel.background import bounded
from sandbox.kernel.files import read_bytes
from sandbox.kernel.procfs import all_pids, read_stat

TABLE_BYTES = 1 << 26
SOCK_DIAG, DUMP_REQUEST = 4, 0x301  # NETLINK_SOCK_DIAG; NLM_F_REQUEST | NLM_F_DUMP
SOCK_DIAG_BY_FAMILY, ERROR, DONE = 20, 2, 3
NAME, VFS, PEER, ICONS, SHUTDOWN = 0, 1, 2, 3, 6  # UNIX_DIAG_*
SHOW = 0x0F  # UDIAG_SHOW_NAME, _VFS, _PEER and _ICONS
SHUT = 3  # RCV_SHUTDOWN | SEND_SHUTDOWN: the other end is gone
ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LISTEN = 1, 4, 5, 8, 10  # net/tcp_states.h
MAPPED = b"\0" * 10 + b"\xff\xff"

Address = tuple[bytes, int]


@dataclass
class Listener:
    """`kind`: tcp or unix. `address`: `127.0.0.1:80`, `[::1]:80`, a path, or `@name` of an abstract one (unix(7)).

    `holders`: which of the processes that were asked about have it open; `users`: which others are connected to it.
    `remote`: addresses that are connected and are no socket of this network namespace. `unseen`: how many more are
    connected that no process holds which can be looked into.
    """

    kind: str
    address: str
    holders: list[int]
    users: list[int] = field(default_factory=list)
    remote: list[str] = field(default_factory=list)
    unseen: int = 0
    ends: set[int] = field(default_factory=set)
    """The inodes of the connected sockets."""


@dataclass
class Untold:
    """What could not be looked at, and why; `pids`: whose sockets, none where it is of all of them."""

    why: str
    pids: list[int] = field(default_factory=list)


@dataclass
class Seen:
    listeners: list[Listener] = field(default_factory=list)
    untold: list[Untold] = field(default_factory=list)


def listening(pids: Collection[int], seconds: float) -> Seen:
    """The sockets that `pids` listen on, read within `seconds`. Raises nothing: what can't be told is `untold`."""
    done: list[Seen] = []
    deadline = time.monotonic() + seconds
    bounded(lambda: done.append(_look(pids, deadline)), seconds)
    return done[0] if done else Seen([], [Untold(f"the sockets could not be read within {seconds:g} s")])


def _look(pids: Collection[int], deadline: float) -> Seen:
    seen = Seen()
    held = _held(pids, seen)
    try:
        seen.listeners += _tcp(held)
    except OSError as error:
        seen.untold.append(Untold(f"TCP sockets: {error.strerror}"))
    try:
        seen.listeners += _unix(held, deadline)
    except OSError as error:
        seen.untold.append(Untold(f"unix sockets: the kernel does not list them: {error.strerror or error}"))
    wanted = {inode for one in seen.listeners for inode in one.ends}
    owners = {inode: set(held.get(inode, ())) for inode in wanted}
    for pid in set(all_pids()).difference(pids) if wanted else ():
        for inode in wanted.intersection(_inodes(pid) or ()):
            owners[inode].add(pid)
    for one in seen.listeners:
        one.users = sorted({pid for inode in one.ends for pid in owners[inode]}.difference(pids))
        one.unseen = sum(not owners[inode] for inode in one.ends)
    return seen


def _held(pids: Iterable[int], seen: Seen) -> dict[int, list[int]]:
    """Who of `pids` holds a socket, by its inode; adds to `seen` whose sockets can't be told."""
    own = _namespace(os.getpid())
    unread, elsewhere = Untold("their descriptors can't be read"), Untold("in another network namespace")
    held: dict[int, list[int]] = {}
    for pid in sorted(pids):
        inodes, namespace = _inodes(pid), _namespace(pid)
        for inode in inodes or ():
            held.setdefault(inode, []).append(pid)
        if inodes is None or namespace is None:
            stat = read_stat(pid)
            unread.pids += [pid] if stat and stat.state not in "ZX" else []
        elif namespace != own:
            elsewhere.pids.append(pid)
    seen.untold += [one for one in (unread, elsewhere) if one.pids]
    return held


def _inodes(pid: int) -> set[int] | None:
    """The inodes of the sockets that a process has open; None if it can't be looked into."""
    found = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{name}")
            except FileNotFoundError:
                continue  # closed meanwhile
            if link.startswith("socket:["):
                found.add(int(link[8:-1]))
    except OSError:
        return None
    return found


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


# TCP


@dataclass(frozen=True)
class Row:
    """A line of /proc/net/tcp or tcp6; an IPv4 address in IPv6 (RFC 4291, 2.5.5.2) as IPv4. `inode` 0: nobody's."""

    local: Address
    remote: Address
    state: int
    inode: int


def parse_tcp(text: bytes) -> Iterator[Row]:
    """The rows of such a file; lines that make no sense are passed over."""
    for line in text.splitlines():
        fields = line.split()
        try:
            yield Row(_address(fields[1]), _address(fields[2]), int(fields[3], 16), int(fields[9]))
        except (ValueError, IndexError):
            continue


def _address(text: bytes) -> Address:
    words, _, port = text.partition(b":")
    if len(words) not in (8, 32):
        raise ValueError("no address")
    parts = [int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8)]
    return b"".join(parts).removeprefix(MAPPED), int(port, 16)


def _tcp(held: dict[int, list[int]]) -> list[Listener]:
    rows = list(parse_tcp(read_bytes("/proc/net/tcp", TABLE_BYTES)))
    if os.path.exists("/proc/net/tcp6"):
        rows += parse_tcp(read_bytes("/proc/net/tcp6", TABLE_BYTES))
    by_ends = {(row.local, row.remote): row for row in rows}
    at_port: dict[int, list[Row]] = {}
    for row in rows:
        if row.state in (ESTABLISHED, CLOSE_WAIT) or (row.inode and row.state in (FIN_WAIT1, FIN_WAIT2)):
            at_port.setdefault(row.local[1], []).append(row)
    found = []
    for row in rows:
        if row.state != LISTEN or row.inode not in held:
            continue
        one = Listener("tcp", _shown(row.local), held[row.inode])
        for end in at_port.get(row.local[1], ()):
            # 0: a connection that waits to be accepted.
            if _reaches(row.local[0], end.local[0]) and (end.inode == 0 or end.inode in held):
                other = by_ends.get((end.remote, end.local))
                if other is None:
                    # Of this host, and closed long ago: the listener's side has not noticed (tcp(7), tcp_fin_timeout).
                    gone = end.state == CLOSE_WAIT and end.remote[0] == end.local[0]
                    one.remote += [] if gone else [_shown(end.remote)]
                elif other.inode:
                    one.ends.add(other.inode)
        found.append(one)
    return found


def _reaches(listener: bytes, local: bytes) -> bool:
    """Does a socket at address `listener` accept what comes to `local`? All zeros: any address, and `::` IPv4, too."""
    return listener == local or (not any(listener) and len(listener) >= len(local))


def _shown(address: Address) -> str:
    raw, port = address
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{port}"


# unix


@dataclass(frozen=True)
class UnixRow:
    """A unix_diag_msg with its attributes: `key` tells one bound name from another, `peers` the inodes connected to it.

    `shut`: the other end has gone.
    """

    state: int
    inode: int
    name: bytes
    key: tuple[bytes, bytes]
    peers: tuple[int, ...]
    shut: bool


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The netlink messages of a datagram: type and payload; a broken one ends it."""
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if length < 16 or at + length > len(data):
            return
        yield kind, data[at + 16 : at + length]
        at += (length + 3) & ~3


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes behind a message's fixed part (netlink(7), struct rtattr); a broken one ends it."""
    found, at = {}, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4 or at + length > len(data):
            break
        found[kind & 0x3FFF] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def parse_unix(payload: bytes) -> UnixRow | None:
    if len(payload) < 16:
        return None
    _family, _type, state, _pad, inode = struct.unpack_from("=BBBBI", payload)
    more = attributes(payload[16:])
    name = more.get(NAME, b"")
    inodes = more.get(PEER, b"") + more.get(ICONS, b"")
    peers = struct.unpack(f"={len(inodes) // 4}I", inodes[: len(inodes) // 4 * 4])
    shut = more.get(SHUTDOWN, b"")[:1] == bytes([SHUT])
    return UnixRow(state, inode, name, (name, more.get(VFS, b"")), tuple(p for p in peers if p), shut)


def unix_rows(deadline: float) -> list[UnixRow]:
    """The listening and connected unix sockets of this network namespace. Raises OSError, at `deadline` too."""
    states = 1 << ESTABLISHED | 1 << LISTEN
    request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, states, 0, SHOW, 0xFFFFFFFF, 0xFFFFFFFF)
    header = struct.pack("=IHHII", 16 + len(request), SOCK_DIAG_BY_FAMILY, DUMP_REQUEST, 1, 0)
    rows: list[UnixRow] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG) as link:
        link.sendto(header + request, (0, 0))
        while True:
            link.settimeout(max(0.001, deadline - time.monotonic()))
            data, (sender, _) = link.recvfrom(1 << 16)
            for kind, payload in messages(data) if sender == 0 else ():
                if kind == DONE:
                    return rows
                if kind == ERROR:
                    number = -struct.unpack_from("=i", payload.ljust(4, b"\0"))[0]
                    raise OSError(number, os.strerror(number))
                if kind == SOCK_DIAG_BY_FAMILY and (row := parse_unix(payload)):
                    rows.append(row)


def _unix(held: dict[int, list[int]], deadline: float) -> list[Listener]:
    rows = unix_rows(deadline)
    ends: dict[tuple[bytes, bytes], set[int]] = {}
    for row in rows:
        if not row.shut:
            ends.setdefault(row.key, set()).update(row.peers)
    # An accepted socket has the name of the one that it came by (unix(7)).
    return [
        Listener("unix", _name(row.name), held[row.inode], ends=ends.get(row.key, set()))
        for row in rows
        if row.state == LISTEN and row.inode in held
    ]


def _name(raw: bytes) -> str:
    return "@" + os.fsdecode(raw[1:]) if raw[:1] == b"\0" else os.fsdecode(raw.split(b"\0")[0])
