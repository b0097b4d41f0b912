"""The name a client gives itself: host, process, random part. For logs of the proxies; unique enough."""

from __future__ import annotations

import os
import secrets
import socket


def new_client_id() -> str:
    """Such as `web-3@4711@9f2c51ab`."""
    return f"{socket.gethostname()[:64]}@{os.getpid()}@{secrets.token_hex(4)}"
