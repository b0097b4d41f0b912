"""The log of a failing handler: one traceback per kind of error, then a line per error; no text is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from ddmq_client.application.handler_errors import KINDS_MAX, TRACEBACK_EVERY_S, HandlerErrors
from ddmq_client.received import Message
from ddmq_client.testing import make_message

LOGGER = "ddmq_client.consumer"


class ErrorLogRig:
    """Errors of handlers, a clock to move, and what was logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 1_000.0
        self.errors = HandlerErrors(lambda: self.now)
        self._caplog = caplog

    def fail(self, handler: Callable[[Message], object], *messages: Message) -> None:
        """Run a handler that raises, and report its error."""
        messages = messages or (make_message(b"x", topic="orders", key="17", offset=3, attempt=2),)
        try:
            handler(messages[0])
        except Exception as error:
            self.errors.report_error(messages, error)

    def read_log(self) -> list[tuple[str, bool]]:
        """Return the texts logged since the last call, and whether each has a traceback."""
        lines = [(record.getMessage(), record.exc_info is not None) for record in self._caplog.records]
        self._caplog.clear()
        return lines


@pytest.fixture
def rig(caplog: pytest.LogCaptureFixture) -> Iterator[ErrorLogRig]:
    with caplog.at_level(logging.INFO, logger=LOGGER):
        yield ErrorLogRig(caplog)


def raise_lookup(message: Message) -> None:
    raise LookupError(f"no address for {message.key}")


def test_the_first_error_has_a_traceback_and_each_further_one_a_line(rig: ErrorLogRig) -> None:
    for _ in range(3):
        rig.fail(raise_lookup)
    shown = "Message(orders/0/3, key='17', 1 bytes, attempt=2)"
    location = f"client/test_handler_errors.py:{raise_lookup.__code__.co_firstlineno + 1}"
    assert rig.read_log() == [
        (f"the handler raised on {shown}", True),
        (
            f"the handler raised on {shown}: LookupError: no address for 17"
            f" (error 2 of this kind, at {location}; error 1 has the traceback)",
            False,
        ),
        (
            f"the handler raised on {shown}: LookupError: no address for 17"
            f" (error 3 of this kind, at {location}; error 1 has the traceback)",
            False,
        ),
    ]


def test_another_type_or_location_is_another_kind(rig: ErrorLogRig) -> None:
    def elsewhere(message: Message) -> None:
        raise LookupError("no address")

    def through_another_caller(message: Message) -> None:
        raise_lookup(message)

    def another_type(message: Message) -> None:
        raise KeyError("address") if message.key == "17" else ValueError("address")

    for handler in (raise_lookup, elsewhere, through_another_caller, another_type):
        rig.fail(handler)
    rig.fail(another_type, make_message(key="18"))
    assert [has_traceback for _, has_traceback in rig.read_log()] == [True] * 5


def test_another_cause_or_member_of_a_group_is_another_kind(rig: ErrorLogRig) -> None:
    def wrap(message: Message) -> None:
        try:
            raise_lookup(message) if message.key == "17" else int("x")
        except Exception as error:
            raise RuntimeError("failed") from error

    def group(message: Message) -> None:
        raise ExceptionGroup("tasks", [ValueError("a") if message.key == "17" else TypeError("b")])

    for handler in (wrap, group):
        for key in ("17", "18", "17"):
            rig.fail(handler, make_message(key=key))
    lines = rig.read_log()
    assert [has_traceback for _, has_traceback in lines] == [True, True, False] * 2
    assert "RuntimeError: failed; from LookupError: no address for 17 (error 2" in lines[2][0]
    assert "ExceptionGroup: tasks (1 sub-exception); from ValueError: a (error 2" in lines[5][0]


def test_the_traceback_is_logged_once_an_hour(rig: ErrorLogRig) -> None:
    rig.fail(raise_lookup)
    rig.now += TRACEBACK_EVERY_S - 1
    rig.fail(raise_lookup)
    rig.now += 1
    rig.fail(raise_lookup)
    rig.fail(raise_lookup)
    lines = rig.read_log()
    assert [has_traceback for _, has_traceback in lines] == [True, False, True, False]
    assert "LookupError: no address for 17 (error 3 of this kind" in lines[2][0]
    assert lines[3][0].endswith("error 3 has the traceback)")


def test_at_level_debug_every_error_has_its_traceback(
    rig: ErrorLogRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger=LOGGER)
    rig.fail(raise_lookup)
    rig.fail(raise_lookup)
    assert [has_traceback for _, has_traceback in rig.read_log()] == [True, True]


def test_kinds_beyond_the_bound_are_forgotten_the_longest_unseen_first(rig: ErrorLogRig) -> None:
    functions: dict[str, object] = {}
    lines = "".join(f"def handle_{n}(message): raise ValueError({n})\n" for n in range(KINDS_MAX + 1))
    exec(compile(lines, "many.py", "exec"), functions)
    handlers = [functions[f"handle_{n}"] for n in range(KINDS_MAX + 1)]
    for handler in (*handlers[:KINDS_MAX], handlers[0], handlers[KINDS_MAX]):
        rig.fail(handler)  # type: ignore[arg-type]
    rig.read_log()
    rig.fail(handlers[0])  # type: ignore[arg-type]
    rig.fail(handlers[1])  # type: ignore[arg-type]
    assert [has_traceback for _, has_traceback in rig.read_log()] == [False, True]


def test_a_line_stays_one_line_and_a_broken_text_does_not_hide_the_error(rig: ErrorLogRig) -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def hostile(message: Message) -> None:
        raise ValueError("one\ntwo\x1b[31m")

    def broken(message: Message) -> None:
        raise BrokenError

    for handler in (hostile, hostile, broken, broken):
        rig.fail(handler)
    lines = rig.read_log()
    assert "ValueError: one two\\x1b[31m (error 2" in lines[1][0]
    assert "BrokenError: (its text cannot be read) (error 2" in lines[3][0]


def test_a_batch_names_its_first_messages_and_the_number_of_others(rig: ErrorLogRig) -> None:
    rig.fail(raise_lookup, *(make_message(offset=n) for n in range(5)))
    ((text, _),) = rig.read_log()
    assert text.count("Message(") == 3
    assert text.endswith(" and 2 more")
