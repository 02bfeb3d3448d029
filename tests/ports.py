"""Ports for process groups of the tests."""

import socket

_RESERVED: list[socket.socket] = []


def reserved_port() -> int:
    """Return a port that is not assigned to other processes while this one runs.

    The socket stays bound without listening: the kernel does not assign its port automatically, but
    a store can listen on it explicitly (both reuse the address).
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    _RESERVED.append(reserved)
    return int(reserved.getsockname()[1])
