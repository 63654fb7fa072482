"""The socket of a server."""

import gc
import socket
import warnings

import pytest

from pabal.errors import InvalidInput
from pabal.runtime.listening import bound_socket


def test_a_port_in_use_is_refused_and_leaves_no_socket_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always", ResourceWarning)
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"cannot serve at 127.0.0.1 port {port}: Address already in use"):
            bound_socket("127.0.0.1", port)
        gc.collect()
    assert left_open == []
