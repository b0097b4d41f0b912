"""A process that consumes, works and produces, and may be killed at any moment: one of those of reply_run.py.

    python -m tests.crash.reply_load NAME SEED PORT PORT

Two consumers. The first makes one to three parts and a side of each job, in two topics; the second one an
end of each part. Each handling draws a token that all its messages carry, so that what belongs to several
handlings is seen. Some handlers raise when they have sent, some are late for their lease.
"""

from __future__ import annotations

import json
import sys
import time
from random import Random
from typing import NamedTuple

from ddmq_client import Consumer, LeaseOverError, Message, SendError

JOBS, PARTS, SIDES, ENDS = "cwp-jobs", "cwp-parts", "cwp-sides", "cwp-ends"
FIRST, SECOND = "cwp-first", "cwp-second"
THREADS = 4
COUNT_MAX = 3
LATE_S = 2.5  # longer than the longest lease, and the client's extensions are off


class Work(NamedTuple):
    """What the body of a message says: it is this one of so many that a handling made of a job."""

    job: str
    index: int
    count: int
    token: str


class GaveUpError(Exception):
    """A handler fails."""


def count_parts(job: str) -> int:
    """How many parts a job has; what is stored says no other."""
    return 1 + sum(job.encode()) % COUNT_MAX


class ReplyLoad:
    """One process."""

    def __init__(self, name: str, seed: str) -> None:
        self._random = Random(f"{seed}/{name}")
        self._name = name
        self._tokens = 0

    def _token(self) -> str:
        self._tokens += 1
        return f"{self._name}/{self._tokens}/{self._random.getrandbits(32)}"

    def first(self, message: Message) -> None:
        """A job becomes parts, and one side."""
        job, token = message.text(), self._token()
        key, count = job.partition("/")[0], count_parts(job)
        with message.replies(timeout_ms=10_000) as tx:
            for index in range(count):
                tx.send(PARTS, json.dumps(Work(job, index, count, token)), key=key, shard_key=key)
            tx.send(SIDES, json.dumps(Work(job, 0, 1, token)), key=key, shard_key=key)
            self._fail_sometimes()

    def second(self, message: Message) -> None:
        """A part becomes an end."""
        work = Work(*json.loads(message.body))
        with message.replies(timeout_ms=10_000) as tx:
            end = json.dumps(work._replace(token=self._token()))
            tx.send(ENDS, end, key=message.key, shard_key=message.key)
            self._fail_sometimes()

    def _fail_sometimes(self) -> None:
        fate = self._random.random()
        if fate < 0.03:
            raise GaveUpError
        if fate < 0.035:
            time.sleep(LATE_S)  # a handler that is late for its lease


def quietly(handle):  # type: ignore[no-untyped-def]
    """What is expected here is no line in the log: the message fails."""

    def handler(message: Message) -> None:
        try:
            handle(message)
        except (GaveUpError, LeaseOverError, SendError) as error:
            message.fail(0, error)

    return handler


def main(name: str, seed: str, *ports: str) -> None:
    """Until it is killed, or its standard input ends: then it stops as it should."""
    load, addresses = ReplyLoad(name, seed), [f"127.0.0.1:{port}" for port in ports]
    options = {"threads": THREADS, "extend_for_ms": 0, "linger_ms": 200, "max_batch": 8}
    with (
        Consumer(addresses, FIRST, [JOBS], handler=quietly(load.first), **options),
        Consumer(addresses, SECOND, [PARTS], handler=quietly(load.second), **options),
    ):
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
