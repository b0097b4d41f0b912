"""`ddmq pull` takes messages as a group and acknowledges them.

Queues are shown by number, as `ddmq send` and `ddmq message` show them; `qid` is the name that the wire has.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from ddmq.address import ADDRESS, CONSUMER, HostPort
from ddmq.cli.admin_client import AdminClient, admin_options, find_admin_port_hint
from ddmq.cli.operate.groups.pause import paused_text
from ddmq.cli.output import (
    hint,
    print_json,
    print_message_line,
    print_notes,
    reason,
    show_body,
)
from ddmq.cli.values import FOLDER, GROUP, TOPIC, Integer, check_host
from ddmq_client import ClientError, Consumer, Message, PullError
from ddmq_client.core.frames import FrameError
from ddmq_client.core.nodes import ProxyAddress
from ddmq_client.core.verdicts import CallFailed
from ddmq_client.net.connection import FramedConnection
from ddmq_client.security.tls import secure_addresses
from ddmq_client.wire.consuming import read_stats, stats_frame
from ddmq_client.wire.producing import ProxyCallError
from ddmq_common.plain_text import body_fields

GROUP_DEFAULT = "ddmq-cli"
PATIENCE_MS = 2_000  # how long an empty pull waits before that means "no more"
REACH_S = 3.0  # how long a consumer proxy has for its first answer
KEYS_MAX = 1_000  # blocked keys that are read to explain an empty pull
NAMED_MAX = 3  # parked keys that are named
PARKED = "parked"  # a state of a blocked key
OPERATOR = "operator"  # the reason of a key that an operator parked
WHERE = "`ddmq serve` starts one, --consumer HOST:PORT names another"
NOBODY = "no consumer proxy has answered"  # how the client begins what it says of that


class Settlement(NamedTuple):
    """An action of `ddmq pull` for each message after it was shown (acknowledge, fail or leave), with the
    word for people."""

    word: str
    does: Callable[[Message], object]


@click.command()
@click.argument("topic", type=TOPIC)
@click.option(
    "--group",
    type=GROUP,
    default=GROUP_DEFAULT,
    show_default=True,
    help="Consumer group whose messages are taken.",
)
@click.option(
    "--tags",
    metavar="'A || B'",
    help="Only messages with one of these tags. It becomes the filter of a new group; if an existing group "
    "has another filter, nothing is pulled.",
)
@click.option("--count", type=Integer(1), help="Stop after so many messages.")
@click.option("--follow", is_flag=True, help="Keep waiting for more, until Ctrl-C.")
@click.option(
    "--no-ack", is_flag=True, help="Do not acknowledge: messages are redelivered after the ack timeout."
)
@click.option("--fail", metavar="TEXT", help="Fail each message with this reason, so that it is retried.")
@click.option(
    "--save-to",
    type=FOLDER,
    help="Write each body to a file DIRECTORY/TOPIC-QUEUE-OFFSET.",
)
@click.option("--consumer", type=ADDRESS, default=str(CONSUMER), show_default=True, envvar="DDMQ_CONSUMER",
              help="Consumer proxy (or set DDMQ_CONSUMER).")  # fmt: skip
@admin_options
def pull(
    topic: str,
    group: str,
    tags: str | None,
    count: int | None,
    follow: bool,
    no_ack: bool,
    fail: str | None,
    save_to: Path | None,
    consumer: HostPort,
    admin: AdminClient,
    as_json: bool,
) -> None:
    """Take messages of TOPIC as a consumer group and acknowledge (or fail) them, until there are no more.

    A message that was acknowledged is not delivered to the group again. `ddmq tail` shows messages without
    taking them.

    \b
    Examples:
      ddmq pull orders --group billing
      ddmq pull orders --group billing --count 1 --no-ack
      ddmq pull orders --group mailer --tags 'new || paid' --follow

    A group that does not exist is created and starts at the first message. GROUP%INSTANCE, with any name for
    INSTANCE, reads a broadcasting group from the newest message on. Exit code 0 if there were no messages; 1
    if the consumer proxy cannot be reached or, without --follow, if there is no such topic.
    """
    if no_ack and fail is not None:
        raise click.UsageError("--no-ack and --fail do not go together")
    ending = Settlement("not acknowledged", _leave) if no_ack else Settlement("acknowledged", Message.ack)
    if fail is not None:
        ending = Settlement("failed", lambda message: message.fail(reason=fail))
    proxy = check_host(consumer, "--consumer")
    if save_to is not None:
        _save_with(save_to, lambda folder: folder.mkdir(parents=True, exist_ok=True))
    if not follow:
        _check_proxy(consumer, group)
    _subscribe(admin, topic, group, tags, follow, as_json)
    try:
        with (
            _quiet_client(),
            Consumer(proxy, group, [topic], auto_ack=False, max_batch=100) as client,
        ):
            total = _pull_messages(client, proxy, count, follow, ending, save_to, as_json)
    except ClientError as error:
        advice = f"; {WHERE}" if NOBODY in str(error) else ""
        raise click.ClickException(f"{error}{advice}") from error
    if not as_json:
        hint(
            f"{total:,} message{'s' if total != 1 else ''}, {ending.word}"
            if total
            else _describe_empty_pull(admin, topic, group)
        )


def _describe_empty_pull(client: AdminClient, topic: str, group: str) -> str:
    """Return a text that says that no messages came, and where the messages are that the group has not
    finished."""
    if not _is_ordinary(client, group):
        return f"no messages for instance {group}; it gets what comes from its first pull on (--follow waits)"
    answer = client.get("groups", group, keys=KEYS_MAX)
    own = [each for each in answer["subscriptions"] if each["topic"] == topic]
    parked = [each for each in answer["blocked_keys"] if each["state"] == PARKED and each["topic"] == topic]
    if own and own[0].get("paused"):
        return f"no messages for group {group}; {paused_text(own[0])}"
    queues = [queue for each in own for queue in each["queues"]]
    explanations = []
    in_flight = sum(queue["in_flight"] + queue["retrying"] for queue in queues)
    in_flight -= sum(each["reason"] != OPERATOR for each in parked)  # counted as retrying
    if in_flight > 0:
        explanations.append(f"{in_flight:,} are in flight or wait for their retry")
    if parked:
        explanations.append(_describe_parked(group, [each["key"] for each in parked]))
    if later := sum(each["retry_waiting"] or 0 for each in own):
        explanations.append(
            f"{later:,} failed and are on the retry path, `ddmq group show {group}` says until when"
        )
    if elsewhere := sum(queue["lag"] for queue in queues if queue["holder"] and not queue["held"]):
        explanations.append(f"{elsewhere:,} are in queues that another consumer proxy holds")
    if not explanations:
        explanations.append(_describe_finished(topic, group, queues))
    if filters := [text for each in own if (text := _filter_of(each)) is not None]:
        explanations.append(
            f"its filter ({filters[0]}) leaves the other messages out "
            f"(`ddmq tail {topic} --no-follow` shows them)"
        )
    return f"no messages for group {group}" + "".join(f"; {explanation}" for explanation in explanations)


def _describe_parked(group: str, keys: Sequence[str]) -> str:
    """Return a text that names the parked keys, and the command that shows what to do about them."""
    names = ", ".join(keys[:NAMED_MAX]) + (", …" if len(keys) > NAMED_MAX else "")
    text = f"key {names} is parked" if len(keys) == 1 else f"{len(keys):,} keys ({names}) are parked"
    return f"{text} until an operator replays or skips: `ddmq group keys {group}`"


def _describe_finished(topic: str, group: str, queues: Sequence[Mapping[str, Any]]) -> str:
    """Return a text that explains why a pull returned no messages, and what the user can do about it.

    No message is in flight or waits for a retry.
    """
    if not any(queue["next"] for queue in queues):
        return f"topic {topic} is empty: `ddmq send {topic} hello` sends it a message"
    if lag := sum(queue["lag"] for queue in queues):
        return f"{lag:,} wait, `ddmq group show {group}` says for what"
    return (
        f"it has finished everything in {topic}: "
        f"`ddmq offset reset {group} --topic {topic} --to first` delivers it again"
    )


def _filter_of(subscription: Mapping[str, Any]) -> str | None:
    from ddmq.settings import describe_filter

    return describe_filter(subscription["settings"]["tags"], subscription["settings"]["sql"])


@contextmanager
def _quiet_client() -> Iterator[None]:
    """Silence the client library's log in the block, because this command prints the same warnings itself."""
    log = logging.getLogger("ddmq_client")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _leave(message: Message) -> None:
    """Neither acknowledge nor fail the message."""


def _is_ordinary(client: AdminClient, group: str) -> bool:
    """Return whether the name is that of a group, and not GROUP%INSTANCE, an instance of a broadcasting
    group."""
    return "%" not in group or any(row["group"] == group for row in client.get("groups"))


def _check_proxy(consumer: HostPort, group: str) -> None:
    """Check that a consumer proxy answers, before a group is created. Raises ClickException."""
    connection = FramedConnection(secure_addresses((ProxyAddress(*consumer),), None)[0])
    try:
        payload, number = connection.call(
            lambda _, number: stats_frame(group, number), time.monotonic() + REACH_S
        )
        read_stats(payload, number)
    except (CallFailed, FrameError, ProxyCallError) as error:
        advice = find_admin_port_hint(consumer, "--consumer", "consumer") or WHERE
        raise click.ClickException(f"no consumer proxy at {connection.name}: {error}; {advice}") from error
    except PullError:
        pass  # it refuses, so it is one
    finally:
        connection.close()


def _subscribe(
    client: AdminClient, topic: str, group: str, tags: str | None, follow: bool, as_json: bool
) -> None:
    """Subscribe the group. Raises ClickException for a topic that does not exist, unless with --follow, and
    for a group that has another filter than `tags`."""
    if not follow:
        client.get("topics", topic)
    if not _is_ordinary(client, group):
        if tags is not None:
            raise click.UsageError(f"--tags does not go with the instance {group} of a broadcasting group")
        return
    settings = {} if tags is None else {"tags": tags}
    answer = client.post("groups", group, body={"topics": [topic], "start": "first"} | settings)
    if tags is not None and topic not in answer["subscribed"]:
        _check_filter(answer, topic, tags)
    print_notes(answer)
    if not as_json and answer.get("created"):
        only = "" if tags is None else f", only messages with tags {tags}"
        hint(f"created group {group} on {topic}, starting at its first message{only}")


def _check_filter(group: dict[str, Any], topic: str, tags: str) -> None:
    """Raise ClickException if the group's subscription to the topic has another filter than `tags`. All its
    consumers share the filter, so a pull does not change it."""
    from proxy_consumer.filters.message_filters import ExpressionError, parse_tags

    try:
        required = parse_tags(tags)
    except ExpressionError as error:
        raise click.UsageError(f"--tags {tags!r}: {error}") from error
    subscription = next(each for each in group["subscriptions"] if each["topic"] == topic)
    settings, name = subscription["settings"], group["group"]
    if settings["sql"] or parse_tags(settings["tags"]) != required:
        raise click.ClickException(
            f"the filter of group {name} on {topic} is {_filter_of(subscription) or 'none'}, not {tags}, and "
            "all its consumers share it; pull without --tags, choose another --group, or change it: "
            f"`ddmq group set {name} --topic {topic} --tags {shlex.quote(tags)}`"
        )


def _pull_messages(
    client: Consumer,
    proxy: str,
    count: int | None,
    follow: bool,
    ending: Settlement,
    save_to: Path | None,
    as_json: bool,
) -> int:
    total = failures = 0
    waits = False
    while count is None or total < count:
        batch_size = min(100, count - total) if count is not None else 100
        messages = client.pull(batch_size, timeout_ms=PATIENCE_MS)
        if not messages:
            failures = _check_empty_pull(client, proxy, failures, follow)
            if not follow:
                break
            if not (total or failures or waits or as_json):
                hint("nothing yet: waiting for messages; Ctrl-C ends")
            waits = True
        before = total
        try:
            for message in messages:
                _print_message(message, as_json)
                if save_to is not None:
                    _save(message, save_to)
                ending.does(message)
                total += 1
        finally:  # as when nobody reads standard output any more
            for message in messages[total - before :]:
                message.hand_back()
    return total


def _check_empty_pull(client: Consumer, proxy: str, errors_before: int, follow: bool) -> int:
    """Check after an empty pull whether pulls have failed since `errors_before` of them had; if so, raise
    ClickException or, with `follow`, print a hint. Returns the number of failed pulls so far."""
    errors = client.counts().pull_errors
    if errors > errors_before:
        text = f"no consumer proxy answers at {proxy}"
        if not follow:
            raise click.ClickException(
                f"{text}; start one with `ddmq serve`, or name another with --consumer HOST:PORT"
            )
        if not errors_before:
            hint(f"{text}; trying again")
    return errors


def _print_message(message: Message, as_json: bool) -> None:
    if as_json:
        print_json(_message_row(message))
        return
    attempt = {"attempt": message.attempt} if message.attempt not in (None, 1) else {}
    facts = {"key": message.key, "tags": message.tags} | attempt
    position = f"{_queue_number(message.queue)}/{message.offset}"
    print_message_line(position, facts, message.properties, show_body(message.body))


def _message_row(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "queue": _queue_number(message.queue),
        "qid": message.queue,
        "offset": message.offset,
        "id": message.message_id,
        "key": message.key,
        "tags": message.tags,
        "properties": dict(message.properties),
        "attempt": message.attempt,
        "stored_ms": message.stored_ms,
        "body_bytes": len(message.body),
    } | body_fields(message.body)


def _queue_number(qid: str) -> int | str:
    """Return the number of a queue, 3 for `R_default_a_3`; a name of another form unchanged."""
    number = qid.rpartition("_")[2]
    return int(number) if number.isdecimal() else qid


def _save(message: Message, folder: Path) -> None:
    name = f"{message.topic}-{_queue_number(message.queue)}-{message.offset}"
    _save_with(folder / name, lambda path: path.write_bytes(message.body))


def _save_with(path: Path, does: Callable[[Path], object]) -> None:
    """Write the file at `path` by calling `does`. Raises ClickException, so that a message which could not be
    saved is not acknowledged."""
    try:
        does(path)
    except OSError as error:
        raise click.ClickException(f"--save-to: {path} cannot be written: {reason(error)}") from error
