"""Ports for process groups of the tests."""

import socket

_HELD: list[socket.socket] = []


def reserved_port() -> int:
    """A port that nobody else is given while this process lives.

    The socket stays bound without listening: the kernel hands its port to nobody who asks for
    any port, and a store that names it may listen there (both allow the address to be reused).
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _HELD.append(held)
    return int(held.getsockname()[1])
