"""Checks of requests to the admin port: they name this server and come from no page of another site.

A browser sends what any page tells it to, also to loopback, and a name of an attacker may point there. It
cannot lie about Host, Origin and Sec-Fetch-Site, nor send JSON to another site unasked. So Host must be an
address or name of this server, an Origin the same as Host, and a POST JSON. Lengths are exact, so that no
proxy in front sees other requests than this server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv6Address
from typing import Any, NamedTuple

_AUTHORITY = re.compile(
    r"(?:\[([0-9A-Fa-f:.]+)(?:%[\w.%-]+)?\]|([^\[\]:@/?#\\\s]+))(?::[0-9]{0,5})?", re.ASCII
)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
JSON = "application/json"


class RefusedRequest(NamedTuple):
    """Why a request is not taken: an HTTP status and a sentence."""

    status: int
    text: str


def refusal(environ: Mapping[str, Any], names: Iterable[str]) -> RefusedRequest | None:
    """Return what is wrong with the request before its body is read; None: nothing.

    `names`: what the server is called beside loopback and the address that the client connected to.
    """
    return _length(environ) or _host(environ, names) or _origin(environ) or _content(environ)


def _length(environ: Mapping[str, Any]) -> RefusedRequest | None:
    if "HTTP_TRANSFER_ENCODING" in environ:
        return RefusedRequest(411, "Transfer-Encoding is not taken; send the body with its Content-Length")
    given = environ.get("ddmq.lengths") or [environ.get("CONTENT_LENGTH") or "0"]
    if len(given) > 1 or not (given[0].isascii() and given[0].isdigit() and len(given[0]) < 19):
        return RefusedRequest(400, f"Content-Length is {', '.join(given)[:60]!r}; one whole number is wanted")
    return None


def _host(environ: Mapping[str, Any], names: Iterable[str]) -> RefusedRequest | None:
    given = environ.get("HTTP_HOST")
    if given is None:
        return None  # no browser leaves it out
    own = {*LOOPBACK_NAMES, *map(_plain, names), _plain(environ.get("ddmq.own_address", ""))} - {""}
    if _host_of(given) not in own:
        return RefusedRequest(
            403,
            f"Host is {given[:100]!r}, no name of this server, which is {', '.join(sorted(own))}; "
            "admin_names in ddmq.yaml names further ones",
        )
    return None


def _host_of(authority: str) -> str | None:
    """The host of HOST or HOST:PORT, of [V6] too, as `_plain` has it; None where it is none."""
    found = _AUTHORITY.fullmatch(authority)
    return None if found is None else _plain(found[1] or found[2])


def _plain(host: str) -> str:
    """Return a host in lower case; an IPv6 address as it is mostly written, without its zone."""
    try:
        return str(IPv6Address(host.partition("%")[0]))
    except ValueError:
        return host.lower().rstrip(".")


def _origin(environ: Mapping[str, Any]) -> RefusedRequest | None:
    origin, host = environ.get("HTTP_ORIGIN"), environ.get("HTTP_HOST", "")
    if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
        return RefusedRequest(403, f"Origin is {origin[:100]!r}: pages of other sites may not use this API")
    site = environ.get("HTTP_SEC_FETCH_SITE", "none")
    if site not in ("none", "same-origin"):
        return RefusedRequest(
            403, f"Sec-Fetch-Site is {site[:40]!r}: pages of other sites may not use this API"
        )
    return None


def _content(environ: Mapping[str, Any]) -> RefusedRequest | None:
    if environ["REQUEST_METHOD"] != "POST" and int(environ.get("CONTENT_LENGTH") or "0") == 0:
        return None
    kind = environ.get("CONTENT_TYPE", "")
    if kind.partition(";")[0].strip().lower() != JSON:
        said = repr(kind[:100]) if kind else "missing"
        return RefusedRequest(415, f"Content-Type is {said}; allowed: {JSON}")
    return None


Check = Callable[[Mapping[str, Any]], RefusedRequest | None]
