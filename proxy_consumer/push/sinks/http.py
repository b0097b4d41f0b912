"""AsyncHttp: one request per try, and what follows from its answer.

Which URL: (a random start + errors) modulo n. What is no answer (another status than 200, a redirect, a
time-out) is an error: again after 1 s × 2^min(errors, 7), `max_retry` times, then dead letter. Targets,
also those that a message names itself, must be in push_targets of the proxy.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ddmq_common.metrics import catalogue
from proxy_consumer.push.actions.config import PushConfig
from proxy_consumer.push.actions.job import ActionJob
from proxy_consumer.push.actions.targets import AllowList, Url, parse_url
from proxy_consumer.push.permits import Permits
from proxy_consumer.push.sinks import http_request
from proxy_consumer.push.sinks.http_answer import HttpReading, Meaning, read_answer
from proxy_consumer.push.sinks.http_pool import HttpPool, NoAnswerError
from proxy_consumer.push.verdict import DONE, Pushed, Verdict, VerdictKind
from proxy_consumer.runtime import Runtime

BACKOFF_S = 1.0
DOUBLINGS_MAX = 7
LATER_S = 1.0
OUR_HEADERS = {
    "Content-Type": http_request.CONTENT_TYPE,
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "User-Agent": "ddmq-proxy",
}


class HttpSink:
    """The sink of one subscription. `rate_max`: messages a second, as its settings have it now."""

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
    def fault(self) -> str | None:
        """The first of its URLs that the proxy may not connect to, as push_targets are now."""
        faults = (self._allowed().url_fault(url) for url in self._urls)
        return next((fault for fault in faults if fault is not None), None)

    def close(self) -> None:
        """Close what is kept open."""
        self._pool.close()

    def push(self, pushed: Pushed) -> Verdict:
        """One request, if it is its turn."""
        now = self._now()
        if pushed.slot is None:
            pushed.slot = self._permits.slot(now)
        if pushed.slot > now:
            return Verdict(VerdictKind.AGAIN, "", pushed.slot)
        pushed.slot = None
        try:
            url = self._url(pushed)
        except ValueError as error:
            return Verdict(VerdictKind.GIVE_UP, f"AsyncHttp: {error}")
        reading = self._send(pushed, url)
        pushed.requests += 1
        return self._verdict(pushed, reading)

    def _url(self, pushed: Pushed) -> Url:
        """Where this try goes. Raises ValueError for a target that is none, or is not allowed."""
        named = http_request.callback_urls(pushed.job) if self._config.allow_callback else []
        urls = [parse_url(text) for text in named] if named else self._urls
        for url in urls:
            fault = self._allowed().url_fault(url)
            if fault is not None:
                raise ValueError(fault)
        if pushed.first < 0:
            pushed.first = self._random.randrange(1 << 30)
        return urls[(pushed.first + pushed.errors) % len(urls)]

    def _send(self, pushed: Pushed, url: Url) -> HttpReading:
        job, config = pushed.job, self._config
        body = http_request.form(job.params, http_request.request_count(job, pushed.requests))
        target = http_request.target(url, job.query)
        headers = self._headers(job)
        if config.signing_key:
            at_s = self._clock.wall_ms() // 1000
            headers["Ddmq-Signature"] = http_request.signature(config.signing_key, at_s, body)
        try:
            status, answer = self._pool.request(
                url, config.method, target, body, headers, config.timeout_ms / 1000
            )
        except NoAnswerError as error:
            return HttpReading(Meaning.ERROR, str(error))
        reading = read_answer(status, answer)
        return reading._replace(text=f"{url.shown}: {reading.text}") if reading.text else reading

    def _headers(self, job: ActionJob) -> dict[str, str]:
        given: dict[str, str] = {}
        if self._with_headers:
            given, ignored = http_request.headers(job)
            self._ignored.value += ignored
        theirs = {name.lower() for name in given}
        ours = {name: value for name, value in OUR_HEADERS.items() if name.lower() not in theirs}
        return ours | given

    def _verdict(self, pushed: Pushed, reading: HttpReading) -> Verdict:
        meaning = reading.meaning
        if meaning is Meaning.DONE:
            return DONE
        if meaning is Meaning.SLOWER:
            self._permits.slow_down(self._now(), self._rate_max())
            return DONE
        if meaning is Meaning.LATER:
            return Verdict(VerdictKind.AGAIN, reading.text, self._now() + LATER_S)
        if meaning is Meaning.ERROR:
            return self._error(pushed, reading.text)
        return Verdict(
            VerdictKind.FAIL if meaning is Meaning.FAIL else VerdictKind.GIVE_UP, f"AsyncHttp: {reading.text}"
        )

    def _error(self, pushed: Pushed, text: str) -> Verdict:
        wait_s = BACKOFF_S * 2.0 ** min(pushed.errors, DOUBLINGS_MAX)
        pushed.errors += 1
        if 0 <= self._config.max_retry < pushed.errors:
            return Verdict(VerdictKind.GIVE_UP, f"AsyncHttp: {text} (after {pushed.errors} errors)")
        return Verdict(VerdictKind.AGAIN, text, self._now() + wait_s)
