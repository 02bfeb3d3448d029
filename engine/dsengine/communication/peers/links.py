"""The connections by which ranks hear of each other: rank 0 holds one to each other rank.

A line is a message in JSON. The first line of a connection proves, with a secret from the
process group's store, that it comes from a rank of this run; the first line back, that it went to
one. While all is well nothing else is sent; a connection that ends means a rank that has ended.
"""

import json
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from dsengine.communication.peers.message import ENDS, Kind, Message

CONNECT_SECONDS = 5.0
LONGEST_LINE = 65536
SEND_SECONDS = 2.0
"""How long last words wait for a connection that is not there yet."""

Hear = Callable[[Message], None]


@dataclass(frozen=True, slots=True)
class Address:
    """Where rank 0 listens; ``hosts`` are names to try in turn."""

    hosts: list[str]
    port: int
    question: str
    answer: str
    host: str
    process: int

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Address":
        return cls(**json.loads(data))


@dataclass(slots=True)
class _Member:
    """One connection as rank 0 sees it; ``end``, its last of ``ENDS``, is None until it has proved
    itself."""

    received: bytes = b""
    end: Message | None = None


class Hub:
    """Rank 0's end: hears every rank and passes on to the others what each one says."""

    def __init__(self, own: Message, hosts: list[str], hear: Hear) -> None:
        self._server = _listen(hosts)
        self._hear = hear
        self._members: dict[socket.socket, _Member] = {}
        self._lock = threading.Lock()
        self._said: dict[int, Message] = {}
        """By rank, the last that is known of it."""
        self.address = Address(
            hosts=hosts,
            port=int(self._server.getsockname()[1]),
            question=secrets.token_hex(16),
            answer=secrets.token_hex(16),
            host=own.host,
            process=own.process,
        )
        self._waker, self._woken = socket.socketpair()
        self.thread = threading.Thread(target=self._run, name="dsengine-peers", daemon=True)
        self.thread.start()

    def send(self, message: Message) -> None:
        """Tell all ranks; what became of one, those too that connect later."""
        line = message.to_line()
        with self._lock:
            if message.kind in ENDS:
                self._said[message.rank] = message
            for connection, member in self._members.items():
                if member.end is not None:
                    _send(connection, line)

    def close(self) -> None:
        """Hang up on all ranks."""
        self._waker.close()

    def forget(self) -> None:
        """Close the copies of a forked child; the parent's connections stay as they are."""
        for each in [self._waker, self._woken, self._server, *self._members]:
            each.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, suppress(OSError, ValueError):
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._woken in ready:
                    break
                for each in ready:
                    self._accept(selector) if each is self._server else self._read(selector, each)
        self.forget()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:  # no descriptor is free: later, perhaps
            time.sleep(1.0)
            return
        _keep_alive(connection)
        connection.settimeout(SEND_SECONDS)
        with self._lock:
            self._members[connection] = _Member()
        selector.register(connection, selectors.EVENT_READ)

    def _read(self, selector: selectors.BaseSelector, connection: Any) -> None:
        member = self._members[connection]
        try:
            data = connection.recv(4096)
        except OSError:
            data = b""
        *lines, member.received = (member.received + data).split(b"\n")
        try:
            for line in lines:
                self._take(connection, member, line)
        except (ValueError, TypeError, KeyError):
            data = b""  # a stranger
        if not data or len(member.received) > LONGEST_LINE:
            selector.unregister(connection)
            with self._lock:
                del self._members[connection]
            connection.close()
            self._gone(member)

    def _take(self, connection: socket.socket, member: _Member, line: bytes) -> None:
        if member.end is None:
            question, _, line = line.partition(b" ")
            if not secrets.compare_digest(question, self.address.question.encode()):
                raise ValueError("not a rank of this run")
            message = Message.from_line(line)
            with self._lock:  # what is said from now on, it hears as a member
                _send(connection, self.address.answer.encode() + b"\n")
                for said in self._said.values():
                    _send(connection, said.to_line())
                member.end = message
        else:
            message = Message.from_line(line)
        if message.kind in ENDS:
            member.end = message
            self._pass_on(message)
        else:
            self._hear(message)

    def _gone(self, member: _Member) -> None:
        if member.end is not None and member.end.kind is Kind.BACK:
            self._pass_on(replace(member.end, kind=Kind.DIED))

    def _pass_on(self, message: Message) -> None:
        self.send(message)
        self._hear(message)


class Spoke:
    """Any other rank's end. ``find`` returns rank 0's address, or None while it is not known."""

    def __init__(self, own: Message, find: Callable[[], Address | None], hear: Hear) -> None:
        self._own = own
        self._find: Callable[[], Address | None] | None = find
        self._hear = hear
        self._connection: socket.socket | None = None
        self._connected = threading.Event()
        self._closed = False
        threading.Thread(target=self._run, name="dsengine-peers", daemon=True).start()

    def send(self, message: Message) -> None:
        if self._connected.wait(SEND_SECONDS) and self._connection is not None:
            _send(self._connection, message.to_line())

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()

    def forget(self) -> None:
        """Close the copy of a forked child; the parent's connection stays as it is."""
        if self._connection is not None:
            self._connection.close()

    def _run(self) -> None:
        address = self._await_address()
        connection = None if address is None else self._connect(address)
        if address is None or connection is None:
            return
        reader = connection.makefile("rb")
        if reader.readline(LONGEST_LINE).strip() != address.answer.encode():
            return
        self._connection = connection
        self._connected.set()
        hub = Message(0, address.host, address.process, Kind.DIED)
        with suppress(OSError, ValueError, TypeError, KeyError):
            while line := reader.readline(LONGEST_LINE):
                self._hear(Message.from_line(line))
        if not self._closed:
            self._hear(hub)

    def _await_address(self) -> Address | None:
        find, self._find = self._find, None  # it holds the store, which must not outlive its use
        while find is not None and not self._closed:
            try:
                address = find()
            except RuntimeError:  # the store is gone
                return None
            if address is not None:
                return address
            time.sleep(0.02)
        return None

    def _connect(self, address: Address) -> socket.socket | None:
        for host in address.hosts:
            try:
                connection = socket.create_connection((host, address.port), CONNECT_SECONDS)
                _keep_alive(connection)
                connection.sendall(address.question.encode() + b" " + self._own.to_line())
            except OSError:
                continue
            connection.settimeout(None)
            return connection
        return None


def _listen(hosts: list[str]) -> socket.socket:
    """Listen on the loopback interface where all ranks are on one host, else on all."""
    local = all(_is_loopback(host) for host in hosts[:1])
    if local:
        return socket.create_server(("127.0.0.1", 0), backlog=1024)
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(
                ("", 0), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True
            )
    return socket.create_server(("", 0), backlog=1024)


def _is_loopback(host: str) -> bool:
    try:
        return socket.gethostbyname(host).startswith("127.")
    except OSError:
        return False


def _keep_alive(connection: socket.socket) -> None:
    """Notice within about half a minute that a host has vanished without closing anything."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _send(connection: socket.socket, line: bytes) -> None:
    with suppress(OSError):  # a rank that is gone is found out by reading
        connection.sendall(line)
