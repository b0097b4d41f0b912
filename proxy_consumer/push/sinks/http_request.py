"""The request of AsyncHttp, from a job to bytes.

The body is application/x-www-form-urlencoded in UTF-8 with `+` for a space, with GET too; a value None is
a bare name. Query values are percent-encoded and appended to the URL's own query. carrera_req_cnt comes
last, always. The property carrera_headers brings headers, carrera_http_callback_url other targets.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

from proxy_consumer.push.actions.job import ActionJob, plain, readable
from proxy_consumer.push.actions.targets import Url

CONTENT_TYPE = "application/x-www-form-urlencoded; charset=UTF-8"
HEADERS_PROPERTY = b"carrera_headers"
CALLBACK_PROPERTY = b"carrera_http_callback_url"
CALLBACK_URLS_MAX = 16
HEADERS_MAX = 64
HEADER_CHARS_MAX = 8192
KEPT_CHARS_MAX = 64
OURS = {  # headers that frame the message or belong to the connection
    "host", "content-length", "content-type", "transfer-encoding", "connection", "keep-alive", "te",
    "trailer", "upgrade", "expect", "accept-encoding", "proxy-authorization", "proxy-connection",
    "ddmq-signature",
}  # fmt: skip
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*\Z")
_LOOP_ID = re.compile(rb"\d{10}-[34]-\d{10}-\d+-(\d{1,18})-\d+-\d+-[0-9a-z]+(?:-[0-9a-z]+){4}\Z")


def form(params: Sequence[tuple[str, str | None]], requests: int) -> bytes:
    """The body; `requests`: what carrera_req_cnt says."""
    fields = [_plus(name) if value is None else f"{_plus(name)}={_plus(value)}" for name, value in params]
    fields.append(f"carrera_req_cnt={requests}")
    return "&".join(fields).encode()


def _plus(text: str) -> str:
    return _plus_kept(text) if len(text) <= KEPT_CHARS_MAX else quote_plus(text)


@lru_cache(maxsize=4096)
def _plus_kept(text: str) -> str:
    """Names, topics, groups: the same in every message."""
    return quote_plus(text)


def target(url: Url, query: Sequence[tuple[str, str]]) -> str:
    """Path and query of the request line."""
    if not query:
        return url.target
    added = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query)
    if "?" not in url.target:
        return f"{url.target}?{added}"
    return url.target + ("" if url.target.endswith(("?", "&")) else "&") + added


def signature(key: str, at_s: int, body: bytes) -> str:
    """What Ddmq-Signature says: when, and HMAC-SHA256 over `at_s.body`."""
    made = hmac.new(key.encode(), b"%d." % at_s + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={made}"


def request_count(job: ActionJob, requests: int) -> int:
    """What carrera_req_cnt says: earlier requests for this job; for a loop message which occurrence it is."""
    if b"from_chronos" in job.properties:
        match = _LOOP_ID.match(job.key)
        if match is not None:
            return int(match[1])
    return requests


def headers(job: ActionJob) -> tuple[dict[str, str], int]:
    """The headers of the property carrera_headers, and how many of them cannot be sent."""
    raw = job.properties.get(HEADERS_PROPERTY)
    if not raw:
        return {}, 0
    try:
        given = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}, 1
    if not isinstance(given, Mapping):
        return {}, 1
    kept = {name: plain(value) for name, value in given.items() if _may_be_sent(name, value)}
    kept = dict(list(kept.items())[:HEADERS_MAX])
    return kept, len(given) - len(kept)


def _may_be_sent(name: str, value: Any) -> bool:
    if value is None or name.lower() in OURS or not _TOKEN.match(name):
        return False
    text = plain(value)
    return len(text) <= HEADER_CHARS_MAX and _VALUE.match(text) is not None


def callback_urls(job: ActionJob) -> list[str]:
    """The targets that the message names itself, at most CALLBACK_URLS_MAX; empty: none."""
    raw = readable(job.properties.get(CALLBACK_PROPERTY, b""))
    return [url.strip() for url in raw.split("<>") if url.strip()][:CALLBACK_URLS_MAX]
