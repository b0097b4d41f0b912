"""`ddmq delay cancel`, `reschedule` and `fire`: changes of delayed messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import click

from ddmq.address import HostPort
from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.messages.delay_requests import (
    CANCEL,
    FIRE,
    RESCHEDULE,
    ChangeRequests,
    DelayChange,
    choose_requests,
)
from ddmq.cli.messages.sending import (
    describe_outcome,
    first_options,
    outcome_json,
    producer_option,
    read_timing,
    timeout_option,
)
from ddmq.cli.messages.waiting import (
    Selection,
    choice_of,
    choice_options,
    count_matches,
    describe_choice,
    find_delay_id_error,
    hint_incomplete,
    print_messages,
    walk_pages,
)
from ddmq.cli.output import confirm, hint, print_json, print_line
from ddmq.cli.values import NAME, TOPIC
from ddmq_client import CancelOutcome, DelayStatus
from ddmq_common.names import find_topic_name_error

AT_ONCE = 16  # requests under way, when many messages are cancelled
SHOWN = 20  # messages that a dry run lists
MISSING_FIELDS = ("orders_waiting", "elsewhere", "not_open")
_CANCELLING = DelayChange(CANCEL)


def _reject_text(_: click.Context, __: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(
            "there is no --text here; --key, --from and --to choose among those of --topic"
        )


@click.command(short_help="Cancel messages: by id, or those of a topic.")
@click.argument("ids", type=NAME, nargs=-1)
@click.option(
    "--topic", type=TOPIC, help="Cancel the messages that wait for this topic, including those that repeat."
)
@choice_options
@click.option("--text", hidden=True, expose_value=False, callback=_reject_text, help="Not supported.")
@click.option("--dry-run", is_flag=True, help="Only count and show what --topic would cancel.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@timeout_option
@producer_option
@admin_options
def cancel(
    ids: tuple[str, ...],
    topic: str | None,
    dry_run: bool,
    yes: bool,
    timeout_ms: int,
    producer: HostPort,
    admin: AdminClient,
    as_json: bool,
    **options: str | None,
) -> None:
    """Cancel delayed messages: those with these IDS, or those that wait for a --topic. They are never
    delivered; of a message that repeats, no further delivery happens.

    \b
    Examples:
      ddmq delay cancel 5d0f6c1e-8a3b-4f27-9c64-1b2e7d90a3f5
      ddmq delay cancel --topic reminders --dry-run
      ddmq delay cancel --topic reminders --key 17 --to +1h

    With --topic the command says how many messages it would cancel, and asks; --from, --to and --key choose
    among them. For each of IDS it says what happened: cancelled, already fired (and when), unknown, or too
    old to be known. Exit code 1 unless all of them are cancelled.
    """
    if (topic is None) == (not ids):
        raise click.UsageError("name the messages: IDS, or --topic TOPIC for what waits for it")
    choice = choice_of(topic, options)
    if topic is None and (choice or dry_run):
        raise click.UsageError("--from, --to, --key and --dry-run go with --topic")
    if dry_run:
        return _show_choice(admin, choice, as_json)
    if topic is not None and not yes:
        _confirm_choice(admin, choice)
    with closing(
        choose_requests(producer, admin, timeout_ms, many=topic is not None, quiet=as_json)
    ) as requests:
        if topic is None:
            print_outcomes(ids, request_changes(requests, ids, _CANCELLING), as_json, DelayStatus.CANCELLED)
        else:
            _cancel_choice(_Cancelling(requests), admin, choice, as_json)
    return None


def _show_choice(admin: AdminClient, choice: Selection, as_json: bool) -> None:
    """Count the messages that would be cancelled, and show the first of them."""
    total, page = 0, {}
    for page in walk_pages(admin, choice):
        if not total and not as_json:
            print_messages(page["messages"][:SHOWN])
        total += len(page["messages"])
    if as_json:
        print_json({"topic": choice["topic"], "dry_run": True, "would_cancel": total} | _missing_fields(page))
        return
    if total > SHOWN:
        hint(f"… and {total - SHOWN:,} more")
    print_line(f"would cancel {total:,}{describe_choice(choice)}")
    if not total:
        _hint_nothing(choice)
    hint_incomplete(page)


def _hint_nothing(choice: Selection) -> None:
    hint(f"nothing waits{describe_choice(choice)}; `ddmq delay list` shows all that waits")


def _confirm_choice(admin: AdminClient, choice: Selection) -> None:
    answer = count_matches(admin, choice)
    number = answer["count"]
    if not number:
        return
    they = "the only one that waits" if number == 1 else f"all {number:,} that wait"
    more = "" if answer["exact"] else " (and perhaps more, see `ddmq delay count`)"
    confirm(f"Cancel {they}{describe_choice(choice)}{more}? What is cancelled is never delivered.")


def _missing_fields(page: dict[str, Any]) -> dict[str, Any]:
    return {name: page[name] for name in MISSING_FIELDS}


class _Cancelling:
    """Cancels messages, several at a time. `outcomes` counts the messages by their outcome."""

    def __init__(self, requests: ChangeRequests) -> None:
        self.outcomes: Counter[str] = Counter()
        self._requests = requests

    @property
    def cancelled_count(self) -> int:
        return self.outcomes[DelayStatus.CANCELLED.value]

    def cancel_all(self, named: Sequence[str]) -> None:
        """Cancel these messages and wait for each outcome. A damaged message has no id and is not
        cancelled."""
        ids = [one for one in named if one]
        if len(ids) < len(named):
            self.outcomes["damaged in the store, `ddmq delay list --json` says how"] += len(named) - len(ids)
        if not ids:
            return
        first, *others = ids
        self._count_outcome(self._requests.request_change(first, _CANCELLING))  # it tells if nobody answers
        for outcome in _cancel_concurrently(self._requests, others):
            self._count_outcome(outcome)

    def _count_outcome(self, outcome: CancelOutcome | str) -> None:
        text = outcome if isinstance(outcome, str) else outcome.status.value
        if text not in self.outcomes and len(self.outcomes) >= SHOWN:
            text = "other errors"
        self.outcomes[text] += 1


def _cancel_concurrently(requests: ChangeRequests, ids: Sequence[str]) -> Iterator[CancelOutcome | str]:
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        yield from pool.map(lambda one: requests.request_change(one, _CANCELLING, quiet=True), ids)
    finally:
        pool.shutdown(cancel_futures=True)


def _cancel_choice(cancelling: _Cancelling, admin: AdminClient, choice: Selection, as_json: bool) -> None:
    """Cancel the chosen messages page by page; messages that arrive meanwhile may stay."""
    page: dict[str, Any] = {}
    for page in walk_pages(admin, choice):
        cancelling.cancel_all([row["id"] for row in page["messages"]])
        if page["next"] is not None and not as_json:
            hint(f"{cancelling.cancelled_count:,} cancelled so far")
    outcomes = cancelling.outcomes
    failed = outcomes.total() - cancelling.cancelled_count
    if as_json:
        numbers = {"cancelled": cancelling.cancelled_count, "not_cancelled": failed}
        print_json({"topic": choice["topic"]} | numbers | _missing_fields(page))
    else:
        others = [
            f"{number:,} {text}" for text, number in outcomes.items() if text != DelayStatus.CANCELLED.value
        ]
        print_line(
            f"{cancelling.cancelled_count:,} cancelled"
            + (f", {failed:,} not: {'; '.join(others)}" if failed else "")
        )
        if not outcomes:
            _hint_nothing(choice)
        hint_incomplete(page)
    if failed or any(_missing_fields(page).values()):
        raise click.exceptions.Exit(1)


@click.command(short_help="Give a message another due time.")
@click.argument("delay_id", type=NAME, metavar="ID")
@first_options
@click.option("--zone", help="Time zone of --at (default: local).")
@timeout_option
@producer_option
@admin_options
def reschedule(
    delay_id: str, timeout_ms: int, producer: HostPort, admin: AdminClient, as_json: bool, **options: Any
) -> None:
    """Deliver the message with this ID at another time (of a message that repeats: its next delivery).

    Exit code 1 if it no longer waits.
    """
    timing = read_timing(options)
    if not timing:
        raise click.UsageError("say when: --delay DURATION or --at TIME")
    with closing(choose_requests(producer, admin, timeout_ms, many=False, quiet=as_json)) as requests:
        outcomes = request_changes(requests, (delay_id,), DelayChange(RESCHEDULE, timing))
    print_outcomes((delay_id,), outcomes, as_json, DelayStatus.RESCHEDULED)


@click.command(short_help="Deliver messages now.")
@click.argument("ids", type=NAME, nargs=-1, required=True)
@timeout_option
@producer_option
@admin_options
def fire(
    ids: tuple[str, ...], timeout_ms: int, producer: HostPort, admin: AdminClient, as_json: bool
) -> None:
    """Deliver the messages with these IDS now (of one that repeats: its next delivery).

    Exit code 1 if one was delivered neither by this command nor earlier.
    """
    with closing(choose_requests(producer, admin, timeout_ms, many=False, quiet=as_json)) as requests:
        outcomes = request_changes(requests, ids, DelayChange(FIRE))
    print_outcomes(ids, outcomes, as_json, DelayStatus.FIRED)


def request_changes(
    requests: ChangeRequests, ids: tuple[str, ...], change: DelayChange
) -> list[CancelOutcome | str]:
    """Request the change of each id; return for each its outcome, or the text of the error if there is no
    outcome."""
    return [_find_id_error(one, change) or requests.request_change(one, change) for one in ids]


def _find_id_error(text: str, change: DelayChange) -> str | None:
    """Return why the text is not the id of a delayed message; for a cancel also what cancels those of a topic
    of that name."""
    error = find_delay_id_error(text)
    if error is None or change.action != CANCEL or find_topic_name_error(text) is not None:
        return error
    return f"{error}; to cancel all of topic {text}: `ddmq delay cancel --topic {text}`"


def print_outcomes(
    ids: tuple[str, ...], outcomes: list[CancelOutcome | str], as_json: bool, expected: DelayStatus
) -> None:
    """Print the outcome of each change. Exit code 1 unless all of them are the `expected` one."""
    if as_json:
        print_json([outcome_json(one, outcome) for one, outcome in zip(ids, outcomes, strict=True)])
    else:
        for one, outcome in zip(ids, outcomes, strict=True):
            text = outcome if isinstance(outcome, str) else describe_outcome(outcome, expected)
            print_line(f"{one}: {text}" if len(ids) > 1 else text, err=isinstance(outcome, str))
    if any(isinstance(outcome, str) or outcome.status is not expected for outcome in outcomes):
        raise click.exceptions.Exit(1)
