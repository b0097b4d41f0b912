"""URLs that messages are pushed to, and which are allowed: the allow-list `push_targets` of a proxy.

An entry is a host name (`hooks.example`), a domain with all its subdomains (`*.example`), an address or a
network (`10.1.0.0/16`), each with `:PORT` to allow only that port (IPv6 in brackets then). Or it is a URL
(`https://hooks.example/in/`): it allows only HTTP with that scheme and port, and this path with those below
it. A host that is given by name is allowed by name only, whatever address it has, so that no reply of a name
server can allow another target. An empty list allows nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from proxy_consumer.push.actions.config import HttpConfig

_HOST = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?\.?\Z")
_UNSAFE = re.compile(r"[\x00-\x20\x7f-\U0010ffff]")
CACHED_MAX = 1024  # results
DECODINGS_MAX = 4  # decodings tried of one path; no chain of servers does more, and each scans the whole path
HOST_CHARS_MAX = 253  # longest name in DNS; hosts of messages' own URLs are cached
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Url(NamedTuple):
    """One parsed URL. `target`: path and query as they are written in the request line."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def pool_key(self) -> tuple[str, str, int]:
        """The key of the connection pool for this URL."""
        return self.scheme, self.host, self.port

    @property
    def shown_url(self) -> str:
        """Scheme, host and port: the parts that may be logged."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_url(text: str) -> Url:
    """Parse a URL. Raises ValueError that quotes it without its query, which may contain keys and tokens."""
    shown = text.partition("?")[0][:200]
    if _UNSAFE.search(text):
        raise ValueError(f"URL {shown!r} has blanks or characters that must be percent-encoded")
    try:
        split = urlsplit(text)
        port = split.port
    except ValueError as error:
        raise ValueError(f"URL {shown!r}: {error}") from error
    if split.scheme not in ("http", "https") or not split.hostname:
        raise ValueError(f"URL {shown!r} is not http://HOST/… or https://HOST/…")
    if len(split.hostname) > HOST_CHARS_MAX:
        raise ValueError(
            f"URL {shown!r}: its host has {len(split.hostname)} characters; allowed: at most {HOST_CHARS_MAX}"
        )
    if "@" in split.netloc:
        raise ValueError(f"URL for {split.hostname!r} carries a user name; send it in a header instead")
    target = (split.path or "/") + (f"?{split.query}" if split.query else "")
    return Url(split.scheme, split.hostname, port or (443 if split.scheme == "https" else 80), target)


def parse_address(text: str) -> tuple[str, int]:
    """Parse the text HOST:PORT. Raises ValueError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]").lower()
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def check_http(config: HttpConfig) -> None:
    """Raise ValueError if AsyncHttp cannot work with these settings."""
    if not config.urls:
        raise ValueError("push.http.urls is empty; AsyncHttp needs at least one URL")
    for url in config.urls:
        parse_url(url)


class _Entry(NamedTuple):
    """One entry of the allow-list; exactly one of `network` and `host` is set.

    `port` None: all ports. `scheme` and `path` are set if the entry is a URL.
    """

    network: Network | None
    host: str
    port: int | None
    scheme: str = ""
    path: str = ""

    def is_above(self, url: Url) -> bool:
        """Whether the URL has this entry's scheme, and its path or one below it."""
        path = url.target.partition("?")[0]
        below = self.path if self.path.endswith("/") else self.path + "/"
        return (
            url.scheme == self.scheme
            and (path == self.path or path.startswith(below))
            and _is_plain_path(path)
        )


class AllowList:
    """Decides whether a host and port may be connected to, and a URL requested."""

    def __init__(self, entries: Sequence[str]) -> None:
        """Parse the entries. Raises ValueError that names the invalid one."""
        self._entries = [_parse_entry(text.strip()) for text in entries]
        self._cached: dict[tuple[str, int], list[_Entry]] = {}

    def allows_target(self, host: str, port: int) -> bool:
        """Whether the list allows every request to this host and port."""
        return not all(entry.scheme for entry in self._matching_entries(host, port))

    def _matching_entries(self, host: str, port: int) -> list[_Entry]:
        rule = self._cached.get((host, port))
        if rule is None:
            if len(self._cached) >= CACHED_MAX:
                self._cached.clear()
            rule = self._cached[host, port] = self._find_entries(host, port)
        return rule

    def _find_entries(self, host: str, port: int) -> list[_Entry]:
        address = _parse_ip(host)
        return [
            entry
            for entry in self._entries
            if entry.port in (None, port)
            and (
                _is_inside(address, entry.network)
                if entry.network is not None
                else _matches_name(host, entry.host)
            )
        ]

    def find_target_error(self, host: str, port: int) -> str | None:
        """Return why a target must not be connected to, and what to do; None if it is allowed."""
        return None if self.allows_target(host, port) else _not_among(f"{host}:{port}")

    def find_url_error(self, url: Url) -> str | None:
        """Return why a URL must not be requested, and what to do; None if it is allowed."""
        rule = self._matching_entries(url.host, url.port)
        if any(not entry.scheme or entry.is_above(url) for entry in rule):
            return None
        return _not_among(f"{url.host}:{url.port}" + (url.target.partition("?")[0][:200] if rule else ""))


def _not_among(target: str) -> str:
    return f"{target} is not among push_targets of the proxy; the operator may add it in proxy_consumer.yaml"


def _is_plain_path(path: str) -> bool:
    """Whether no server can read the path as a path further up, however often it decodes it.

    A path that still changes after DECODINGS_MAX decodings is not plain.
    """
    raw = path.encode()
    for _ in range(DECODINGS_MAX):
        before, raw = raw, unquote_to_bytes(raw)
        if raw == before:
            break
    else:
        return False
    try:
        segments = raw.decode().replace("\\", "/").split("/")
    except UnicodeDecodeError:
        return False
    return not any(segment.partition(";")[0].strip("\0\t ") in (".", "..") for segment in segments)


def _parse_entry(text: str) -> _Entry:
    if "://" in text:
        return _url_entry(text)
    text = text.lower()
    for host, port in ((text, None), _with_port(text)):
        try:
            return _Entry(ipaddress.ip_network(host), "", port)
        except ValueError:
            continue
    host, port = _with_port(text)
    if "/" in host or not _HOST.match(host):
        raise ValueError(
            f"push_targets: {text!r} is no host name, *.domain, address or network, with or without :PORT"
        )
    return _Entry(None, host, port)


def _url_entry(text: str) -> _Entry:
    try:
        url = parse_url(text)
    except ValueError as error:
        raise ValueError(f"push_targets: {error}") from error
    if "?" in url.target or not _is_plain_path(url.target):
        raise ValueError(
            f"push_targets: {text!r} has a query, or dots or nested encoding in its path; wanted: plain path"
        )
    return _parse_entry(f"[{url.host}]" if ":" in url.host else url.host)._replace(
        port=url.port, scheme=url.scheme, path=url.target
    )


def _with_port(text: str) -> tuple[str, int | None]:
    host, colon, port = text.rpartition(":")
    if colon and port.isdecimal() and 0 < int(port) < 65536:
        return host.removeprefix("[").removesuffix("]"), int(port)
    return text.removeprefix("[").removesuffix("]"), None


def _parse_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _is_inside(address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, network: Network) -> bool:
    return address is not None and address in network


def _matches_name(host: str, pattern: str) -> bool:
    host = host.rstrip(".")
    if pattern.startswith("*."):
        return host.endswith(pattern[1:]) and len(host) > len(pattern) - 1
    return host == pattern.rstrip(".")
