"""A tag expression that looks like several tags, but is one, is noted; it is not rejected."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ddmq_client import Consumer
from ddmq_client.aio import AsyncConsumer
from ddmq_client.application.tags import find_tag_note
from proxy_consumer.filters.message_filters import parse_tags

UNUSED = "127.0.0.1:9"


@pytest.mark.parametrize(
    "tags",
    [
        "new|paid",
        "new,paid",
        "new, paid",
        "new;paid",
        "new OR paid",
        "new or paid",
        "new && paid",
        "new AND paid",
    ],
)
def test_other_separators_are_noted_with_the_expression_for_either_tag(tags: str) -> None:
    assert find_tag_note(tags) == f"this is one tag named {tags!r}; for either tag write new || paid"
    assert parse_tags(tags) == {tags}


def test_only_the_tag_that_looks_like_several_is_noted() -> None:
    assert find_tag_note("new || b,c,d || e") == (
        "this is one tag named 'b,c,d'; for either tag write b || c || d"
    )


@pytest.mark.parametrize(
    "tags",
    [
        None,
        "",
        "*",
        "new,* || paid",
        "new || paid",
        "order",
        "R&D",
        "oregon and",
        "new paid",
        "a-b_c.d",
        ",",
        "new,",
    ],
)
def test_other_expressions_have_no_note(tags: str | None) -> None:
    assert find_tag_note(tags) == ""


NOTED = "tags='new|paid': this is one tag named 'new|paid'; for either tag write new || paid"


def test_a_consumer_logs_the_note_when_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    with Consumer(UNUSED, "g", "t", tags="new|paid"):
        assert [r.message for r in caplog.records if r.levelno == logging.WARNING][:1] == [NOTED]


def test_a_consumer_of_asyncio_logs_it_too(caplog: pytest.LogCaptureFixture) -> None:
    async def start() -> None:
        async with AsyncConsumer(UNUSED, "g", "t", tags="new|paid"):
            pass

    asyncio.run(start())
    assert NOTED in [record.message for record in caplog.records]
