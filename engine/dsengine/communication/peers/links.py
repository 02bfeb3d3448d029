"""The connections between ranks: rank 0 runs a server, every other rank is its client.

Each line is a message in JSON. The first line of a connection contains a secret from the process
group's store, which authenticates the client; the first line of the response authenticates the
server. In normal operation nothing else is sent; a closed connection means that a rank has ended.
"""

import json
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, BinaryIO

from dsengine.communication.peers.message import STATE_CHANGES, Message, MessageKind

CONNECT_SECONDS = 5.0
MAX_LINE_BYTES = 65536
SEND_SECONDS = 2.0
"""How long a final message waits for a connection that is not established yet."""

OnMessage = Callable[[Message], None]


@dataclass(frozen=True, slots=True)
class Address:
    """Where rank 0 listens; ``hosts`` are tried in order."""

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
class _ClientState:
    """The server's view of one connection. ``last``: its last state change, None until it is
    authenticated."""

    received: bytes = b""
    last: Message | None = None


class Server:
    """Rank 0's side: receives from every rank and broadcasts state changes to the others."""

    def __init__(self, own: Message, hosts: list[str], on_message: OnMessage) -> None:
        self._socket = _listen(hosts)
        self._on_message = on_message
        self._clients: dict[socket.socket, _ClientState] = {}
        self._lock = threading.Lock()
        self._states: dict[int, Message] = {}
        """By rank, its last state change."""
        self.address = Address(
            hosts=hosts,
            port=int(self._socket.getsockname()[1]),
            question=secrets.token_hex(16),
            answer=secrets.token_hex(16),
            host=own.host,
            process=own.process,
        )
        self._waker, self._woken = socket.socketpair()
        self.thread = threading.Thread(target=self._run, name="dsengine-peers", daemon=True)
        self.thread.start()

    def send(self, message: Message) -> None:
        """Send to all ranks; a state change is also sent to those that connect later."""
        line = message.to_line()
        with self._lock:
            if message.kind in STATE_CHANGES:
                self._states[message.rank] = message
            for connection, client in self._clients.items():
                if client.last is not None:
                    _send(connection, line)

    def close(self) -> None:
        """Close all connections."""
        self._waker.close()

    def close_after_fork(self) -> None:
        """Close a forked child's copies; the parent's connections stay open."""
        for copy in [self._waker, self._woken, self._socket, *self._clients]:
            copy.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, suppress(OSError, ValueError):
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._woken in ready:
                    break
                for source in ready:
                    if source is self._socket:
                        self._accept(selector)
                    else:
                        self._read(selector, source)
        self.close_after_fork()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:  # no file descriptor is free: retry later
            time.sleep(1.0)
            return
        _keep_alive(connection)
        connection.settimeout(SEND_SECONDS)
        with self._lock:
            self._clients[connection] = _ClientState()
        selector.register(connection, selectors.EVENT_READ)

    def _read(self, selector: selectors.BaseSelector, connection: Any) -> None:
        client = self._clients[connection]
        try:
            data = connection.recv(4096)
        except OSError:
            data = b""
        *lines, client.received = (client.received + data).split(b"\n")
        try:
            for line in lines:
                self._process(connection, client, line)
        except (ValueError, TypeError, KeyError):
            data = b""  # not a rank of this run
        if not data or len(client.received) > MAX_LINE_BYTES:
            selector.unregister(connection)
            with self._lock:
                del self._clients[connection]
            connection.close()
            self._on_disconnect(client)

    def _process(self, connection: socket.socket, client: _ClientState, line: bytes) -> None:
        if client.last is None:
            question, _, line = line.partition(b" ")
            if not secrets.compare_digest(question, self.address.question.encode()):
                raise ValueError("not a rank of this run")
            message = Message.from_line(line)
            with self._lock:  # later state changes reach it as a client
                _send(connection, self.address.answer.encode() + b"\n")
                for state in self._states.values():
                    _send(connection, state.to_line())
                client.last = message
        else:
            message = Message.from_line(line)
        if message.kind in STATE_CHANGES:
            client.last = message
            self._broadcast(message)
        else:
            self._on_message(message)

    def _on_disconnect(self, client: _ClientState) -> None:
        if client.last is not None and client.last.kind is MessageKind.JOINED:
            self._broadcast(replace(client.last, kind=MessageKind.DIED))

    def _broadcast(self, message: Message) -> None:
        self.send(message)
        self._on_message(message)


class Client:
    """Any other rank's side. ``find`` returns rank 0's address, or None until it is published."""

    def __init__(
        self, own: Message, find: Callable[[], Address | None], on_message: OnMessage
    ) -> None:
        self._own = own
        self._find: Callable[[], Address | None] | None = find
        self._on_message = on_message
        self._connection: socket.socket | None = None
        self._connected = threading.Event()
        self._closed = False
        self.thread = threading.Thread(target=self._run, name="dsengine-peers", daemon=True)
        self.thread.start()

    def send(self, message: Message) -> None:
        if self._connected.wait(SEND_SECONDS) and self._connection is not None:
            _send(self._connection, message.to_line())

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()

    def close_after_fork(self) -> None:
        """Close a forked child's copy; the parent's connection stays open."""
        if self._connection is not None:
            self._connection.close()

    def _run(self) -> None:
        address = self._await_address()
        connection = None if address is None else self._connect(address)
        if address is None or connection is None:
            return
        reader = connection.makefile("rb")
        if not _is_answered(reader, address.answer):
            connection.close()
            return
        self._connection = connection
        self._connected.set()
        server_died = Message(0, address.host, address.process, MessageKind.DIED)
        with suppress(OSError, ValueError, TypeError, KeyError):
            while line := reader.readline(MAX_LINE_BYTES):
                self._on_message(Message.from_line(line))
        if not self._closed:
            self._on_message(server_died)

    def _await_address(self) -> Address | None:
        find, self._find = self._find, None  # it references the store: do not keep it alive
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
            with suppress(OSError), ExitStack() as stack:
                connection = socket.create_connection((host, address.port), CONNECT_SECONDS)
                stack.enter_context(connection)
                _keep_alive(connection)
                connection.sendall(address.question.encode() + b" " + self._own.to_line())
                connection.settimeout(None)
                stack.pop_all()
                return connection
        return None


def _listen(hosts: list[str]) -> socket.socket:
    """Listen on the loopback interface if all ranks are on one host, otherwise on all."""
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


def _is_answered(reader: BinaryIO, answer: str) -> bool:
    """Whether the server authenticates itself; rank 0 may end before it accepts a connection."""
    try:
        return reader.readline(MAX_LINE_BYTES).strip() == answer.encode()
    except OSError:
        return False


def _keep_alive(connection: socket.socket) -> None:
    """Detect within about 30 s that a host has disappeared without closing its connections."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _send(connection: socket.socket, line: bytes) -> None:
    with suppress(OSError):  # the read detects that the rank is gone
        connection.sendall(line)
