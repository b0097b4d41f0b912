"""The sink AsyncHttp: encodes a job as a request, interprets the reply, and decides what follows.

The body is application/x-www-form-urlencoded in UTF-8 with `+` for a space, with GET too; a value None is a
bare name. Query values are percent-encoded and appended to the URL's own query. carrera_req_cnt always comes
last. The property carrera_headers adds headers, carrera_http_callback_url replaces the URLs. All URLs,
including those in a message, must be in push_targets of the proxy.

Only a reply with status 200 counts. `errno` in its body says how to handle the message; a body without it
(blank, no JSON, no object, errno absent, null or "") means done. Everything else (another status, a redirect,
a time-out) is an error: the request is repeated after 1 s × 2^min(errors, 7), up to `max_retry` times, and
then the message becomes a dead letter. The URL is chosen by (a random start + errors) modulo n.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

import msgspec

from ddmq_common.metrics import catalogue
from proxy_consumer.push.actions.config import PushConfig
from proxy_consumer.push.actions.job import ActionJob, plain_value, readable_text
from proxy_consumer.push.actions.targets import AllowList, Url, parse_url
from proxy_consumer.push.sinks.http_pool import HttpPool, NoAnswerError
from proxy_consumer.push.verdict import DONE, Pushed, Verdict, VerdictKind
from proxy_consumer.runtime import Runtime

CONTENT_TYPE = "application/x-www-form-urlencoded; charset=UTF-8"
HEADERS_PROPERTY = b"carrera_headers"
CALLBACK_PROPERTY = b"carrera_http_callback_url"
CALLBACK_URLS_MAX = 16
HEADERS_MAX = 64
HEADER_CHARS_MAX = 8192
CACHED_CHARS_MAX = 64
RESERVED_HEADERS = {  # headers that frame the message or belong to the connection
    "host", "content-length", "content-type", "transfer-encoding", "connection", "keep-alive", "te",
    "trailer", "upgrade", "expect", "accept-encoding", "proxy-authorization", "proxy-connection",
    "ddmq-signature",
}  # fmt: skip
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*\Z")
_LOOP_ID = re.compile(rb"\d{10}-[34]-\d{10}-\d+-(\d{1,18})-\d+-\d+-[0-9a-z]+(?:-[0-9a-z]+){4}\Z")
DONE_SLOWER, DONE_REFUSED, RETRY_LATER = 1_000_000, 1_000_001, 1_000_002
_NUMBER = re.compile(r"[ \t\r\n]*[+-]?\d{1,18}(?:\.0*)?[ \t\r\n]*\Z")
_SILENT = (None, "")
COST = 10  # permits that a request takes after errno 1000000
BACKOFF_S = 1.0
DOUBLINGS_MAX = 7
LATER_S = 1.0
DEFAULT_HEADERS = {
    "Content-Type": CONTENT_TYPE,
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "User-Agent": "ddmq-proxy",
}


def encode_form(params: Sequence[tuple[str, str | None]], requests: int) -> bytes:
    """Encode the request body; `requests`: the value of carrera_req_cnt."""
    fields = [
        _encode_plus(name) if value is None else f"{_encode_plus(name)}={_encode_plus(value)}"
        for name, value in params
    ]
    fields.append(f"carrera_req_cnt={requests}")
    return "&".join(fields).encode()


def _encode_plus(text: str) -> str:
    return _encode_plus_cached(text) if len(text) <= CACHED_CHARS_MAX else quote_plus(text)


@lru_cache(maxsize=4096)
def _encode_plus_cached(text: str) -> str:
    """Encode a short text with a cache: names, topics and groups are the same in every message."""
    return quote_plus(text)


def request_target(url: Url, query: Sequence[tuple[str, str]]) -> str:
    """Build path and query of the request line."""
    if not query:
        return url.target
    added = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query)
    if "?" not in url.target:
        return f"{url.target}?{added}"
    return url.target + ("" if url.target.endswith(("?", "&")) else "&") + added


def sign_body(key: str, at_s: int, body: bytes) -> str:
    """Return the value of the header Ddmq-Signature: the time, and HMAC-SHA256 over `at_s.body`."""
    digest = hmac.new(key.encode(), b"%d." % at_s + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def request_count(job: ActionJob, requests: int) -> int:
    """Return carrera_req_cnt: the earlier requests for this job; for a loop message, the number of its
    occurrence."""
    if b"from_chronos" in job.properties:
        match = _LOOP_ID.match(job.key)
        if match is not None:
            return int(match[1])
    return requests


def property_headers(job: ActionJob) -> tuple[dict[str, str], int]:
    """Return the headers in the property carrera_headers, and how many of them cannot be sent."""
    raw = job.properties.get(HEADERS_PROPERTY)
    if not raw:
        return {}, 0
    try:
        headers = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}, 1
    if not isinstance(headers, Mapping):
        return {}, 1
    accepted = {name: plain_value(value) for name, value in headers.items() if _may_be_sent(name, value)}
    accepted = dict(list(accepted.items())[:HEADERS_MAX])
    return accepted, len(headers) - len(accepted)


def _may_be_sent(name: str, value: Any) -> bool:
    if value is None or name.lower() in RESERVED_HEADERS or not _TOKEN.match(name):
        return False
    text = plain_value(value)
    return len(text) <= HEADER_CHARS_MAX and _VALUE.match(text) is not None


def callback_urls(job: ActionJob) -> list[str]:
    """Return the URLs that the message names itself, at most CALLBACK_URLS_MAX."""
    raw = readable_text(job.properties.get(CALLBACK_PROPERTY, b""))
    return [url.strip() for url in raw.split("<>") if url.strip()][:CALLBACK_URLS_MAX]


class Meaning(Enum):
    """The meaning of a reply for the message."""

    DONE = "done"
    SLOWER = "done, and the next sends slower"
    ERROR = "not an answer: again after a growing wait"
    LATER = "again in a second, not counted"
    FAIL = "a failed job"
    GIVE_UP = "dead letter"


class HttpReading(NamedTuple):
    """The meaning of an HTTP reply for the pushed message. `text`: the reason, unless the message is done."""

    meaning: Meaning
    text: str = ""


_DONE = HttpReading(Meaning.DONE)


def read_answer(status: int, body: bytes) -> HttpReading:
    """Interpret a complete reply."""
    if status != 200:
        return HttpReading(Meaning.ERROR, f"status {status}; 200 is wanted")
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _DONE
    if not isinstance(content, dict) or content.get("errno") in _SILENT:
        return _DONE
    return _reading_of(content["errno"])


def _reading_of(errno: object) -> HttpReading:
    if isinstance(errno, bool) or not isinstance(errno, int | float | str):
        return HttpReading(Meaning.GIVE_UP, f"errno is {errno!r:.60}, not a number")
    if isinstance(errno, str):
        if not _NUMBER.match(errno):
            return HttpReading(Meaning.GIVE_UP, f"errno is {errno!r:.60}, not a number")
        errno = float(errno) if "." in errno else int(errno)
    if errno in (0, DONE_REFUSED):
        return _DONE
    if errno == DONE_SLOWER:
        return HttpReading(Meaning.SLOWER)
    if errno == RETRY_LATER:
        return HttpReading(Meaning.LATER, f"errno {RETRY_LATER}")
    return HttpReading(Meaning.FAIL, f"errno {errno}")


class Permits:
    """Permits for requests at a rate. Time is monotonic seconds.

    A receiver that replies with errno 1000000 asks for a lower rate: its next R requests take COST permits
    each. R is the present rate: the subscription's limit if it has one, otherwise the requests of the last
    full second. Without such a reply a request takes one permit, which the subscription's own rate limit has
    granted already.
    """

    __slots__ = ("_next", "_rate", "_requests", "_requests_before", "_second", "_slow_left")

    def __init__(self) -> None:
        self._slow_left = 0
        self._rate = 1
        self._next = 0.0
        self._second = 0
        self._requests = 0
        self._requests_before = 0

    def next_slot(self, now: float) -> float:
        """Return the time of the next request, `now` or later."""
        self._roll_window(now)
        self._requests += 1
        if self._slow_left == 0:
            return now
        self._slow_left -= 1
        self._next = max(now, self._next + COST / self._rate)
        return self._next

    def slow_down(self, now: float, rate_max: int) -> None:
        """Reduce the rate because the receiver asked for it; `rate_max`: the subscription's limit, 0 =
        none."""
        self._roll_window(now)
        if self._slow_left == 0:
            self._rate = rate_max or max(self._requests_before, self._requests, 1)
            self._next = now
        self._slow_left = self._rate

    def _roll_window(self, now: float) -> None:
        second = int(now)
        if second != self._second:
            self._requests_before = self._requests if second == self._second + 1 else 0
            self._second, self._requests = second, 0


class HttpSink:
    """The AsyncHttp sink of one subscription. `rate_max` returns the subscription's present limit in messages
    per second."""

    def __init__(
        self,
        runtime: Runtime,
        rate_max: Callable[[], int],
        push: PushConfig,
        allowed: Callable[[], AllowList],
        random: Random,
    ) -> None:
        self._clock = runtime.clock
        self._rate_max = rate_max
        self._push = push
        self._config = self._push.http
        self._urls = [parse_url(url) for url in self._config.urls]
        self._allowed = allowed
        self._random = random
        self._now = runtime.now
        self._pool = HttpPool(self._config.connections_max, self._config.response_bytes_max)
        self._permits = Permits()
        self._with_headers = "PROPERTIES" in self._push.form.append_context
        self._ignored = runtime.metrics.cell(catalogue.PUSH_HEADERS_IGNORED, "not sendable")

    @property
    def config_error(self) -> str | None:
        """The error text for the first URL that push_targets does not allow; None if all are allowed."""
        errors = (self._allowed().find_url_error(url) for url in self._urls)
        return next((error for error in errors if error is not None), None)

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.close()

    def push(self, pushed: Pushed) -> Verdict:
        """Send one request if a permit is due; otherwise return the time of the next attempt."""
        now = self._now()
        if pushed.slot is None:
            pushed.slot = self._permits.next_slot(now)
        if pushed.slot > now:
            return Verdict(VerdictKind.RETRY, "", pushed.slot)
        pushed.slot = None
        try:
            url = self._choose_url(pushed)
        except ValueError as error:
            return Verdict(VerdictKind.GIVE_UP, f"AsyncHttp: {error}")
        reading = self._send(pushed, url)
        pushed.requests += 1
        return self._build_verdict(pushed, reading)

    def _choose_url(self, pushed: Pushed) -> Url:
        """Choose the URL of this attempt. Raises ValueError for a URL that is invalid or not allowed."""
        callbacks = callback_urls(pushed.job) if self._config.allow_callback else []
        urls = [parse_url(text) for text in callbacks] if callbacks else self._urls
        for url in urls:
            error = self._allowed().find_url_error(url)
            if error is not None:
                raise ValueError(error)
        if pushed.first < 0:
            pushed.first = self._random.randrange(1 << 30)
        return urls[(pushed.first + pushed.errors) % len(urls)]

    def _send(self, pushed: Pushed, url: Url) -> HttpReading:
        job, config = pushed.job, self._config
        body = encode_form(job.params, request_count(job, pushed.requests))
        target = request_target(url, job.query)
        headers = self._build_headers(job)
        if config.signing_key:
            at_s = self._clock.wall_ms() // 1000
            headers["Ddmq-Signature"] = sign_body(config.signing_key, at_s, body)
        try:
            status, answer = self._pool.send_request(
                url, config.method, target, body, headers, config.timeout_ms / 1000
            )
        except NoAnswerError as error:
            return HttpReading(Meaning.ERROR, str(error))
        reading = read_answer(status, answer)
        return reading._replace(text=f"{url.shown_url}: {reading.text}") if reading.text else reading

    def _build_headers(self, job: ActionJob) -> dict[str, str]:
        own_headers: dict[str, str] = {}
        if self._with_headers:
            own_headers, ignored = property_headers(job)
            self._ignored.value += ignored
        theirs = {name.lower() for name in own_headers}
        defaults = {name: value for name, value in DEFAULT_HEADERS.items() if name.lower() not in theirs}
        return defaults | own_headers

    def _build_verdict(self, pushed: Pushed, reading: HttpReading) -> Verdict:
        meaning = reading.meaning
        if meaning is Meaning.DONE:
            return DONE
        if meaning is Meaning.SLOWER:
            self._permits.slow_down(self._now(), self._rate_max())
            return DONE
        if meaning is Meaning.LATER:
            return Verdict(VerdictKind.RETRY, reading.text, self._now() + LATER_S)
        if meaning is Meaning.ERROR:
            return self._error_verdict(pushed, reading.text)
        return Verdict(
            VerdictKind.FAIL if meaning is Meaning.FAIL else VerdictKind.GIVE_UP, f"AsyncHttp: {reading.text}"
        )

    def _error_verdict(self, pushed: Pushed, text: str) -> Verdict:
        wait_s = BACKOFF_S * 2.0 ** min(pushed.errors, DOUBLINGS_MAX)
        pushed.errors += 1
        if 0 <= self._config.max_retry < pushed.errors:
            return Verdict(VerdictKind.GIVE_UP, f"AsyncHttp: {text} (after {pushed.errors} errors)")
        return Verdict(VerdictKind.RETRY, text, self._now() + wait_s)
