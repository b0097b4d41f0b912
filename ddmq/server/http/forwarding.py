"""A question of the admin API passed on to the process that can answer it. Blocks: native thread."""

from __future__ import annotations

import http.client
import re
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from ddmq.address import parse
from ddmq.server.http.routing import AdminRequest, Text
from ddmq_common.errors import TryLaterError

FORWARDED = "forwarded"  # in the query: it is never passed on again
TIMEOUT_S = 600.0  # a backup may take long


def ask_other(address: str, request: AdminRequest) -> Text:
    """The other's answer as it is. Raises TryLaterError when there is none."""
    filled = re.sub(r"\{(\w+)\}", lambda found: quote(request.path[found[1]], safe=""), request.pattern)
    target = f"{filled}?{urlencode({**request.query, FORWARDED: '1'})}"
    connection = http.client.HTTPConnection(*parse(address), timeout=TIMEOUT_S)
    try:
        body: Any = msgspec.json.encode(dict(request.body)) if request.body else None
        connection.request(request.method, target, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return Text("application/json", response.read(), response.status)
    except (OSError, http.client.HTTPException) as error:
        raise TryLaterError(f"the delay service at {address} does not answer ({error}); try again") from error
    finally:
        connection.close()
