"""A proxy's refusal in the words that the application used, and bounds that are the same everywhere."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta

import pytest

from ddmq_client import Consumer, InvalidMessageError, OptionError, OutgoingMessage, Producer
from ddmq_client.aio import AsyncConsumer, AsyncProducer
from ddmq_client.core.selectors import Placement
from ddmq_client.outgoing import BODY_BYTES_MAX, with_level
from ddmq_client.sql import OutboxTable
from ddmq_client.wire.producing import encode_message
from ddmq_client.wire.wording import in_arguments
from ddmq_common.delays.command import Schedule
from ddmq_common.delays.schedules import ScheduleLimits, find_schedule_error
from proxy_producer.core.delay_requests import check_delay_id
from proxy_producer.core.validation import ContentLimits, check_content

DAY_MS = 86_400_000
LIMITS = ScheduleLimits()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FAILED: uniqDelayMsgId is 'rubbish'; allowed: x", "the delay id is 'rubbish'; allowed: x"),
        ("FAILED: the type in uniqDelayMsgId is 9; allowed: x", "the type in the delay id is 9; allowed: x"),
        ("FAILED: dueMs is 5, second 0; allowed: x", "the due time is epoch millisecond 5; allowed: x"),
        ("FAILED: the period is 10 ms with repeat -1; allowed: x", "every is 10 ms; allowed: x"),
        ("FAILED: the delay is 5443200000 ms; allowed: x", "delay is 5443200000 ms; allowed: x"),
        ("FAILED: topic 'x' takes no delay; allowed: y", "topic 'x' takes no delay; allowed: y"),
        (
            "FAILED: the body has 0 bytes; allowed: 1 to 9 bytes in field 7 or 3",
            "the body has 0 bytes; allowed: 1 to 9 bytes",
        ),
        ("the disk is full", "the disk is full"),
        ("", ""),
    ],
)
def test_the_words_of_the_wire_become_those_of_the_library(text: str, words: str) -> None:
    assert in_arguments(text) == words


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Schedule(delay_ms=63 * DAY_MS), "delay is 63d; allowed: 0 to 62d"),
        (
            Schedule(delay_ms=DAY_MS, period_ms=10, repeat=-1),
            "every is 10ms; allowed: 1s to 62d between deliveries",
        ),
        (Schedule(period_ms=1_000, repeat=3_000_000), "times is 3000001; allowed: 1 to 1000001"),
        (Schedule(cron="* * * * *", occurrences_max=3_000_000), "times is 3000000; allowed: 1 to 1000000"),
    ],
)
def test_rejections_of_schedules_by_the_present_proxies(schedule: Schedule, words: str) -> None:
    error = find_schedule_error(schedule, LIMITS, 1_795_348_800_000)
    assert error is not None
    assert in_arguments(f"FAILED: {error}") == words


def test_a_proxy_says_to_each_caller_its_own_words() -> None:
    for extended, words in ((True, "the delay id is 'rubbish'"), (False, "uniqDelayMsgId is 'rubbish'")):
        rejection = check_delay_id(b"rubbish", 4, extended_client=extended)
        assert rejection is not None
        assert words in rejection.text


@pytest.mark.parametrize("level", [0, -1, 19, 10**9, True, 1.0, "3"])
def test_a_level_is_1_to_18_wherever_one_is_an_argument(level: int) -> None:
    async def send_async() -> None:
        await AsyncProducer("127.0.0.1:9").send("t", b"x", level=level)

    with pytest.raises(OptionError, match=r"level=.*1 \(1 s\) to 18 \(2 h\)"):
        Producer("127.0.0.1:9").send("t", b"x", level=level)
    with pytest.raises(OptionError, match="18"):
        asyncio.run(send_async())
    with pytest.raises(OptionError, match="18"):
        OutboxTable().put(None, "t", b"x", level=level)


def test_the_levels_that_there_are() -> None:
    assert [with_level(None, level) for level in (1, 18)] == [{"DELAY": "1"}, {"DELAY": "18"}]


def test_a_body_has_one_bound() -> None:
    """Told here of none and of one that no frame holds, by the proxy of what is between."""
    texts = []
    for body in (b"", bytes(5_000_000)):
        with pytest.raises(InvalidMessageError) as raised:
            encode_message(OutgoingMessage("t", body), Placement(-2, 0), "c", None)
        texts.append(str(raised.value))
    for body in (None, bytes(BODY_BYTES_MAX + 1)):
        rejection = check_content(b"", b"", body, None, ContentLimits(BODY_BYTES_MAX, 1_000))
        assert rejection is not None
        texts.append(in_arguments(rejection.text))
    bounds = [re.search(r"allowed: (1 to \d+ bytes)", text) for text in texts]
    assert {bound and bound[1] for bound in bounds} == {"1 to 2097152 bytes"}
    assert all(re.match(r"the body has \d+ bytes; ", text) for text in texts)


def test_a_delay_that_is_no_timedelta_is_named() -> None:
    with pytest.raises(OptionError, match=r"every=.*is 0 ms; allowed: at least 1 ms"):
        Producer("127.0.0.1:9").send("t", b"x", every=timedelta(0))


def test_the_number_of_workers_is_named_as_each_consumer_names_it() -> None:
    with pytest.raises(OptionError, match=r"threads=0; allowed: 1 to 1024"):
        Consumer("127.0.0.1:9", "g", "t", threads=0)
    with pytest.raises(OptionError, match=r"concurrency=0; allowed: 1 to 1024"):
        AsyncConsumer("127.0.0.1:9", "g", "t", concurrency=0)
