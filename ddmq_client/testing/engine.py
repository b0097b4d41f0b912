"""Loads the broker's code: from the copy in the client's distribution, or from the server's installation.

The client's wheel carries those modules of the server that the broker needs, below `_server`. They are copied
when the wheel is built (docs/decisions/0026-the-test-broker-is-the-server.md). In the server's distribution,
and in its source tree, the broker uses the modules themselves. The rest of the client knows neither.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ddmq_client.errors import ClientError

_HOME = "ddmq.in_process.server"
_COPY = "ddmq_client.testing._server"


def load_server_class() -> Any:
    """Return the class of the server that runs in a process. ClientError where a package of it is missing."""
    home = f"{_COPY}.{_HOME}" if find_spec(_COPY) is not None else _HOME
    try:
        return import_module(home).InProcessServer
    except ModuleNotFoundError as error:
        raise ClientError(
            f"the test broker needs module {error.name!r}; install the client with its extra `testing`"
        ) from error
