"""Messages between the processes of a node, over sockets that keep their boundaries: one JSON object each."""

from __future__ import annotations

import array
import json
import os
import select
import socket
from typing import Any

_MAX_BYTES = 1 << 20  # of a message: arguments and environment of a worker
_MAX_DESCRIPTORS = 4


def pair() -> tuple[socket.socket, socket.socket]:
    """Makes both ends of a connection."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MAX_BYTES)
    return ends


def send(end: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> bool:
    """Sends a message, with descriptors for the other process. Returns False if the other end is closed."""
    data = json.dumps(message).encode()
    if len(data) > _MAX_BYTES:
        raise ValueError(f"arguments and environment of a worker: want at most {_MAX_BYTES} bytes, got {len(data)}")
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    try:
        end.sendmsg([data], passed)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def is_readable(end: socket.socket, timeout: float | None) -> bool:
    """Waits until a message is there, or the other end is closed. Returns False after `timeout` seconds."""
    waiter = select.poll()  # select() takes no descriptors above 1,023
    waiter.register(end, select.POLLIN)
    return bool(waiter.poll(None if timeout is None else 1000.0 * timeout))


def receive(end: socket.socket, timeout: float | None) -> tuple[dict[str, Any] | None, list[int]]:
    """Waits for a message. Returns it with its descriptors; None if the other end is closed.

    TimeoutError after `timeout` seconds; None waits for as long as the other process lives. ValueError for bytes that
    are no message.
    """
    if not is_readable(end, timeout):
        raise TimeoutError
    space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
    try:
        data, passed, flags, _ = end.recvmsg(_MAX_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None, []
    descriptors = array.array("i")
    for level, kind, content in passed:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[:len(content) - len(content) % descriptors.itemsize])
    if not data:
        return None, list(descriptors)
    try:
        message = json.loads(data)
        if flags & socket.MSG_TRUNC or not isinstance(message, dict):
            raise ValueError("want a JSON object")
    except ValueError as error:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ValueError(f"message between processes: {error}") from error
    return message, list(descriptors)
