"""Connections between ranks, and phases after another rank has failed."""

import os
import threading
from contextlib import suppress

import pytest

from dsengine.communication.peers import Message, RankFailedError, in_phase
from dsengine.communication.peers.message import MessageKind
from dsengine.communication.peers.status import STATUS
from suite.limits import scaled

pytestmark = pytest.mark.engine


def test_forked_child_closes_connections_of_parent() -> None:
    """A data loader's worker outlives a killed rank for seconds; the others must not wait."""
    from dsengine.communication.peers.links import Server
    from dsengine.communication.peers.message import Message

    server = Server(Message(0, "here", 1, MessageKind.JOINED), ["127.0.0.1"], lambda _: None)
    child = os.fork()
    if child == 0:
        server.close_after_fork()
        os._exit(0 if server._socket.fileno() == -1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert server._socket.fileno() != -1
    server.close()
    server.thread.join(scaled(10))
    assert server._socket.fileno() == -1


def test_unauthenticated_messages_are_ignored() -> None:
    import socket

    from dsengine.communication.peers.links import Server
    from dsengine.communication.peers.message import Message

    received: list[Message] = []
    server = Server(Message(0, "here", 1, MessageKind.JOINED), ["127.0.0.1"], received.append)
    forged = Message(1, "there", 2, MessageKind.FAILED, "", "forged").to_line()
    for greeting in (b"guess " + forged, b"\xff\xfe\n", b"x" * 100_000):
        with socket.create_connection(("127.0.0.1", server.address.port)) as stranger:
            stranger.sendall(greeting)
            with suppress(ConnectionResetError):  # or a normal close
                assert stranger.recv(1) == b""
    assert received == []
    server.close()
    server.thread.join(scaled(10))


def test_client_ends_quietly_if_rank_0_ends_before_it_answers() -> None:
    import socket
    import struct

    from dsengine.communication.peers.links import Address, Client
    from dsengine.communication.peers.message import Message

    received: list[Message] = []
    with socket.create_server(("127.0.0.1", 0)) as rank_0:
        rank_0.settimeout(scaled(10))
        address = Address(["127.0.0.1"], rank_0.getsockname()[1], "ask", "tell", "here", 1)
        Client(Message(1, "here", 2, MessageKind.JOINED), lambda: address, received.append)
        (thread,) = (t for t in threading.enumerate() if t.name == "dsengine-peers")
        connection, _ = rank_0.accept()
        assert connection.recv(1) == b"a"
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()  # without lingering: the client reads ECONNRESET
    thread.join(scaled(10))  # pytest reports an exception in a thread as an error
    assert not thread.is_alive() and received == []


def test_phase_raises_after_communicators_were_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a device, waiting for an aborted collective does not raise."""
    message = Message(rank=1, host="node-b", process=7, kind=MessageKind.DIED)
    monkeypatch.setattr(
        "dsengine.communication.peers.phases.current_failure", lambda: message.description
    )
    monkeypatch.setattr(STATUS, "aborted", False)
    monkeypatch.setattr(STATUS, "failure", None)

    @in_phase("step")
    def step(aborts: bool) -> int:
        STATUS.failure, STATUS.aborted = message if aborts else None, aborts
        return 3

    assert step(False) == 3
    with pytest.raises(RankFailedError, match="rank 1"):
        step(True)
