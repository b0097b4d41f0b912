"""AsyncAdmin: topics, groups, offsets, keys, dead letters, sends and delayed messages, over the admin API.

    async with AsyncAdmin("mq-1:9813") as admin:
        await admin.create_topic("orders", queues=8, exist_ok=True)
        await admin.create_group("billing", ["orders"], order_key="KEY", start="first")

What the methods return is in `ddmq_client.admin`, what they raise in `ddmq_client.errors`: NotFoundError,
RejectedError, AccessError, UnavailableError (certainly nothing was changed), UnknownChangeError (perhaps),
each with the server's sentence. One class has all methods, so that users find them by completion. The
blocking client is safe for many threads; the asyncio one lives in one event loop.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

from ddmq_client.admin import operations, records
from ddmq_client.admin.answers import add_counts, decode_body, read_answer, read_page
from ddmq_client.admin.exported_dead_letters import write_dead_letters
from ddmq_client.admin.http import HttpRequest, build_target
from ddmq_client.admin.queries import choice_query, delay_query
from ddmq_client.admin.records import (
    group_settings_body,
    read_row,
    read_rows,
    topic_settings_body,
)
from ddmq_client.admin.sends import change_body, message_body, read_outcome
from ddmq_client.admin.settings import DeadLetterChoice, GroupSettings, TopicSettings
from ddmq_client.aio.admin.pool import AsyncAdminConnections
from ddmq_client.aio.producer import AsyncProducerBase
from ddmq_client.aio.sync import Home, run_blocking
from ddmq_client.application.arguments import explain_arguments
from ddmq_client.core.nodes import parse_addresses
from ddmq_client.core.settings import TIMEOUT_MS_MAX, ProducerSettings, check, topic_names
from ddmq_client.delays import CancelOutcome, When, epoch_ms, when_of
from ddmq_client.errors import NotFoundError, OptionError, RejectedError
from ddmq_client.idl.codes import ADMIN_PORT, PRODUCER_PORT
from ddmq_client.outgoing import OutgoingMessage, ShardKey
from ddmq_client.process import new_client_id
from ddmq_client.security.login import TokenSource
from ddmq_client.security.profiles import choose_connection
from ddmq_client.security.tls import TlsOptions, secure_addresses

R = TypeVar("R")
PAGE = 100  # rows that one request asks for
LIMIT_MAX = 1_000_000  # rows that one call returns


class AsyncAdmin:
    """Administers one installation, through any of several admin ports.

    Close it, or use it as a context manager.

    servers          "host:port", several with commas, or a list; the port may be left out (9813). Or
                     "unix:PATH", the server's admin_socket. The first that accepts a connection is used. Only
                     the proxy that delivers to a group knows its blocked keys and its messages in flight
    producers        producer proxies, if they are to change delayed messages instead of the servers
    timeout_ms       for one request, including connecting
    connections_max  the maximum of open connections; a call beyond it waits
    tls              True, or TlsOptions: use HTTPS, and verify the servers. None: as the environment says
                     (DDMQ_CA); False: plain HTTP
    token, token_file  how this client logs in, as for Producer
    profile          as for Producer
    """

    @explain_arguments("docs/client.md#administration")
    def __init__(
        self,
        servers: str | Sequence[str] | None = None,
        *,
        producers: str | Sequence[str] | None = None,
        timeout_ms: int = 15_000,
        connections_max: int = 4,
        tls: bool | TlsOptions | None = None,
        token: TokenSource = None,
        token_file: str | os.PathLike[str] | None = None,
        profile: str | None = None,
    ) -> None:
        """Check the arguments (raises OptionError); the first call connects."""
        check("timeout_ms", timeout_ms, 1, TIMEOUT_MS_MAX)
        check("connections_max", connections_max, 1, 48)  # the server takes no more from one address
        connection = choose_connection("admin", profile, servers, tls, token, token_file)
        self._login, self._tls = connection.login, connection.tls
        addresses = parse_addresses(
            connection.proxies, ADMIN_PORT, "servers", connection.login, takes_unix=True
        )
        addresses = secure_addresses(addresses, connection.tls)
        if producers is not None:
            parse_addresses(producers, PRODUCER_PORT, "producers")
        self._producers = producers
        self._timeout_ms = timeout_ms
        self._pool = AsyncAdminConnections(addresses, connections_max)
        self._producer: AsyncProducerBase | None = None  # made by the first change that `producers` make
        self._home = Home("admin client")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections. May be called twice."""
        if self._home.is_forked:
            return
        await self._pool.close()
        if self._producer is not None:
            await self._producer.close()

    # --- topics

    async def list_topics(self, *, internal: bool = False) -> list[records.TopicDescription]:
        """Return every topic by name; with `internal` also those of the system."""
        rows = await self._list_rows("topics", internal=int(internal))
        return list(read_rows(records.TopicDescription, rows))

    async def get_topic(self, name: str) -> records.TopicDescription:
        """Return one topic with each queue's range of offsets. Raises NotFoundError."""
        return read_row(records.TopicDescription, await self._get("topics", name))

    async def create_topic(
        self, name: str, *, exist_ok: bool = False, **settings: Unpack[TopicSettings]
    ) -> records.TopicDescription:
        """Create a topic.

        Raises RejectedError if it exists; with `exist_ok`, returns the existing one unchanged.
        """
        body = topic_settings_body(settings)
        try:
            return read_row(records.TopicDescription, await self._post_body("topics", name, body=body))
        except RejectedError:
            if not exist_ok:
                raise
            try:
                return await self.get_topic(name)
            except NotFoundError:
                pass
            raise

    async def update_topic(self, name: str, **settings: Unpack[TopicSettings]) -> records.TopicDescription:
        """Change the given settings of a topic; queues can be added, not removed."""
        body = {**topic_settings_body(settings), "create": False}
        return read_row(records.TopicDescription, await self._post_body("topics", name, body=body))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages. Raises NotFoundError."""
        await self._send_request("DELETE", ("topics", name), {}, None)

    # --- groups

    async def list_groups(self) -> list[records.SubscriptionDescription]:
        """Return every subscription, sorted by group."""
        return list(read_rows(records.SubscriptionDescription, await self._list_rows("groups")))

    async def list_lag(
        self, group: str | None = None, *, limit: int = PAGE
    ) -> list[records.SubscriptionDescription]:
        """Return up to `limit` subscriptions with lag age and rates, the largest lag first.

        They are those of one group, or of all.
        """
        rows = await self._get("lag", group=group, count=_checked_limit(limit))
        return list(read_rows(records.SubscriptionDescription, rows))

    async def get_group(self, group: str) -> records.GroupDescription:
        """Return one group with its subscriptions, clients and blocked keys. Raises NotFoundError."""
        return read_row(records.GroupDescription, await self._get("groups", group))

    async def create_group(
        self, group: str, topics: str | Sequence[str], **settings: Unpack[GroupSettings]
    ) -> records.GroupDescription:
        """Subscribe a group to topics, with these settings.

        Existing subscriptions stay unchanged; `subscribed` of the result names the new ones.
        """
        body = {**group_settings_body(settings), "topics": list(topic_names(topics))}
        return read_row(records.GroupDescription, await self._post_body("groups", group, body=body))

    async def update_subscription(
        self, group: str, topic: str, *, unset: Sequence[str] = (), **settings: Unpack[GroupSettings]
    ) -> records.SettingsChange:
        """Change the given settings of a subscription, or subscribe an existing group to the topic.

        Settings in `unset` return to their defaults. Offsets do not move. Raises NotFoundError if the group
        does not exist; `create_group` creates it.
        """
        body = {**group_settings_body(settings), "unset": list(unset)}
        await self.get_group(group)
        answer = await self._post_body("groups", group, "topics", topic, body=body)
        return read_row(records.SettingsChange, answer)

    async def delete_group(self, group: str, *, topic: str | None = None) -> None:
        """Delete a group, or its subscription to one topic, with its progress. Raises NotFoundError."""
        await self._send_request("DELETE", ("groups", group), {"topic": topic}, None)

    # --- offsets

    async def list_offsets(self, group: str, *, topic: str | None = None) -> list[records.QueueOffset]:
        """Return the group's offset on every queue of its topics, or of one topic."""
        rows = await self._list_rows("groups", group, "offsets", topic=topic)
        return list(read_rows(records.QueueOffset, rows))

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        to: Literal["first", "last"] | int | datetime,
        *,
        queue_id: int | None = None,
        dry_run: bool = False,
    ) -> records.OffsetReset:
        """Move the offsets of a group on a topic, or on one queue of it.

        `to`: "first" (the first message), "last" (after the last one), an offset, or a time (the first
        message stored at or after it). Connected clients continue from there.
        """
        target = epoch_ms("to", to) if isinstance(to, datetime) else to
        body: dict[str, Any] = {"topic": topic, "to": target, "dry_run": dry_run}
        if queue_id is not None:
            body["queue"] = queue_id
        return read_row(records.OffsetReset, await self._post_body("groups", group, "offsets", body=body))

    # --- order keys

    async def list_keys(self, group: str, *, limit: int = 20) -> list[records.KeyDescription]:
        """Return up to `limit` (at most 1,000) blocked and parked keys, the longest blocked first."""
        return list(read_rows(records.KeyDescription, await self._get("groups", group, "keys", limit=limit)))

    async def park_key(self, group: str, key: str) -> records.KeyChange:
        """Park an order key: none of its messages is delivered until it is replayed.

        Other keys are not affected.
        """
        return await self._change_key(group, {"action": "park", "key": key})

    async def skip_key(self, group: str, key: str) -> records.KeyChange:
        """Move the first message of this key to the dead letters.

        The messages after it are then delivered.
        """
        return await self._change_key(group, {"action": "skip", "key": key})

    async def replay_key(self, group: str, key: str, *, take_away: bool = False) -> records.KeyChange:
        """Deliver the first message of this key again now.

        `take_away` ends the lease of a client that currently has it.
        """
        return await self._change_key(group, {"action": "replay", "key": key, "take_away": take_away})

    async def _change_key(self, group: str, body: Mapping[str, Any]) -> records.KeyChange:
        return read_row(records.KeyChange, await self._post_body("groups", group, "keys", body=body))

    async def find_keys(
        self,
        *,
        group: str | None = None,
        state: str | None = None,
        error: str | None = None,
        text: str | None = None,
        limit: int = PAGE,
    ) -> list[operations.GroupKeyDescription]:
        """Return up to `limit` blocked and parked keys of all groups, or those that match what is stated."""
        query: dict[str, Any] = {"group": group, "state": state, "error": error, "text": text}
        rows = await self._list_rows("keys", limit=_checked_limit(limit), **query)
        return list(read_rows(operations.GroupKeyDescription, rows))

    # --- operations, findings, changes

    @explain_arguments("docs/client.md#administration")
    async def plan_operation(
        self,
        kind: operations.OperationKind,
        action: str,
        *,
        to_topic: bool = False,
        due_at: datetime | None = None,
        shift: timedelta | None = None,
        **choice: Unpack[operations.OperationChoice],
    ) -> operations.OperationDescription:
        """Plan `action` on everything that matches `choice`; changes nothing. Start it with its token."""
        body = operations.plan_body(kind, action, choice, to_topic=to_topic, due_at=due_at, shift=shift)
        return read_row(operations.OperationDescription, await self._post_body("operations", body=body))

    async def start_operation(
        self, operation_id: str, token: str, *, rate: int | None = None
    ) -> operations.OperationDescription:
        """Start a plan, or continue an operation. `rate`: the most changes per second."""
        body = {"token": token, "rate": rate}
        row = await self._post_body("operations", operation_id, "start", body=body)
        return read_row(operations.OperationDescription, row)

    async def stop_operation(self, operation_id: str) -> operations.OperationDescription:
        """Stop an operation after the batch that is in progress."""
        row = await self._post_body("operations", operation_id, "stop", body={})
        return read_row(operations.OperationDescription, row)

    async def get_operation(self, operation_id: str) -> operations.OperationDescription:
        """Return a plan or an operation with its progress. Raises NotFoundError."""
        return read_row(operations.OperationDescription, await self._get("operations", operation_id))

    async def list_operations(self) -> list[operations.OperationDescription]:
        """Return the plans of the process that answers, and all started operations, the newest first."""
        return list(read_rows(operations.OperationDescription, await self._list_rows("operations")))

    async def list_findings(self) -> list[operations.FindingDescription]:
        """Return what is wrong now, the most urgent first."""
        return list(read_rows(operations.FindingDescription, (await self._get("findings"))["items"]))

    async def list_changes(self, *, limit: int = PAGE) -> list[operations.ChangeDescription]:
        """Return up to `limit` recorded changes, the newest first."""
        rows = await self._list_rows("changes", limit=_checked_limit(limit))
        return list(read_rows(operations.ChangeDescription, rows))

    async def undo_change(self, change_id: str) -> operations.ChangeDescription:
        """Undo a change; return the change that this is. Raises RejectedError if it cannot be undone."""
        return read_row(
            operations.ChangeDescription, await self._post_body("changes", change_id, "undo", body={})
        )

    # --- dead letters

    async def count_dead_letters(self) -> list[records.DeadLetterCount]:
        """Return the number of dead letters of each group, the largest first."""
        counts = read_rows(records.DeadLetterCount, await self._list_rows("dlq"))
        return sorted(counts, key=lambda count: -count.open)

    async def list_dead_letters(
        self, group: str, *, limit: int = PAGE, **choice: Unpack[DeadLetterChoice]
    ) -> list[records.DeadLetterDescription]:
        """Return up to `limit` open dead letters, oldest first: all, or those that match `choice`."""
        return list(read_rows(records.DeadLetterDescription, await self._list_letters(group, limit, choice)))

    async def resend_dead_letters(
        self,
        group: str,
        *,
        offsets: Sequence[int] = (),
        to_topic: bool = False,
        dry_run: bool = False,
        **choice: Unpack[DeadLetterChoice],
    ) -> records.DeadLettersResent:
        """Resend dead letters to their group: those with these offsets, those that match `choice`, or all.

        With `to_topic` they go to every group of their topics. Repeats the request until none is left.
        """
        body: dict[str, Any] = {**choice_query(choice), "to_topic": to_topic, "dry_run": dry_run}
        if offsets:
            body["offsets"] = list(offsets)
        elif not choice:
            body["all"] = True
        resent: dict[str, int] = {}
        not_sent: dict[str, int] = {}
        while True:
            answer = await self._post_body("dlq", group, "resend", body=body)
            page = read_row(records.DeadLettersResent, answer)
            add_counts(resent, page.resent)
            add_counts(not_sent, page.not_sent)
            if not answer.get("cursor"):
                return records.DeadLettersResent(
                    group=page.group,
                    dry_run=page.dry_run,
                    to_topic=page.to_topic,
                    resent=resent,
                    not_sent=not_sent,
                )
            body["cursor"] = answer["cursor"]

    async def purge_dead_letters(self, group: str, *, before: datetime | None = None) -> int:
        """Discard dead letters: all, or those stored before a time. Returns their number."""
        body = {"all": True} if before is None else {"before_ms": epoch_ms("before", before)}
        return int((await self._post_body("dlq", group, "purge", body=body))["purged"])

    async def export_dead_letters(
        self, group: str, file: str | Path, *, limit: int = LIMIT_MAX, **choice: Unpack[DeadLetterChoice]
    ) -> int:
        """Write open dead letters with their complete bodies to a new file, one JSON object per line.

        Returns their number. Changes nothing at the server. Raises FileExistsError, and other errors of the
        file.
        """
        letters = await self._list_letters(group, limit, choice)
        lines = Path(file).open("x", encoding="utf-8")  # noqa: SIM115  # closed below
        try:
            for start in range(0, len(letters), PAGE):
                page = letters[start : start + PAGE]
                bodies = await self._read_bodies(group, page)
                await run_blocking(write_dead_letters, lines, page, bodies)
        finally:
            lines.close()
        return len(letters)

    async def _list_letters(
        self, group: str, limit: int, choice: DeadLetterChoice
    ) -> list[Mapping[str, Any]]:
        _checked_limit(limit)
        query = {**choice_query(choice), "count": min(limit, PAGE)}
        return await self._list_rows("dlq", group, **query, limit=limit)

    async def _read_bodies(
        self, group: str, letters: Sequence[Mapping[str, Any]]
    ) -> dict[tuple[int, int], Mapping[str, Any]]:
        """Return the body fields of dead letters, by queue and offset.

        Dead letters deleted meanwhile have none.
        """
        topic = await self._letters_topic(group)
        bodies: dict[tuple[int, int], Mapping[str, Any]] = {}
        for letter in letters:
            queue, offset = position = (letter["queue"], letter["offset"])
            if position in bodies:
                continue
            bodies[position] = {}
            rows = await self._get("topics", topic, "messages", queue=queue, offset=offset, count=PAGE)
            for row in rows:
                fields = {name: row[name] for name in ("body", "body_base64") if name in row}
                bodies[row["queue"], row["offset"]] = fields
        return bodies

    async def _letters_topic(self, group: str) -> str:
        """Return the name of the topic that stores a group's dead letters."""
        for count in await self.count_dead_letters():
            if count.group == group:
                return count.topic
        raise NotFoundError(f"group {group!r} has no dead-letter topic")

    # --- delayed messages

    async def list_delays(
        self,
        *,
        topic: str | None = None,
        key: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
        limit: int = PAGE,
    ) -> list[records.DelayedMessage]:
        """Return up to `limit` delayed messages that are not due yet, sorted by due time."""
        _checked_limit(limit)
        query = delay_query(topic, key, due_from, due_before)
        rows = await self._list_rows("delay", "messages", **query, count=min(limit, PAGE), limit=limit)
        return list(read_rows(records.DelayedMessage, rows))

    async def count_delays(
        self,
        *,
        topic: str | None = None,
        key: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
    ) -> records.DelayCount:
        """Return the number of delayed messages that are not due yet.

        Counts those of a topic, with a key, due in a time range, as stated.
        """
        query = delay_query(topic, key, due_from, due_before)
        return read_row(records.DelayCount, await self._get("delay", "count", **query))

    async def get_delay(self, delay_id: str) -> records.DelayState:
        """Return the state of a delayed message, by its delay id or uuid; with its body until it is due."""
        answer = await self._get("delay", "messages", delay_id)
        message = None
        if "due_ms" in answer:
            message = read_row(records.DelayedMessage, {**answer, "body": decode_body(answer)})
        return records.DelayState(
            uuid=answer["uuid"],
            state=answer["state"],
            at=read_row(records.DelayState, answer).at,
            message=message,
        )

    async def cancel_delay(self, delay_id: str) -> CancelOutcome:
        """Cancel a delayed message and return the outcome; see `Producer.cancel`."""
        if self._producers is not None:
            return await self._get_producer(self._producers).cancel(delay_id)
        return await self._change_delay(delay_id, "cancel", None)

    async def reschedule_delay(
        self, delay_id: str, *, delay: timedelta | None = None, deliver_at: datetime | None = None
    ) -> CancelOutcome:
        """Change the due time of a delayed message; see `Producer.reschedule`."""
        if self._producers is not None:
            producer = self._get_producer(self._producers)
            return await producer.reschedule(delay_id, delay=delay, deliver_at=deliver_at)
        when = when_of(delay, deliver_at)
        if when is None:
            raise OptionError("neither delay nor deliver_at is set; allowed: one of them")
        return await self._change_delay(delay_id, "reschedule", when)

    async def fire_delay(self, delay_id: str) -> CancelOutcome:
        """Deliver a delayed message now; see `Producer.fire_now`."""
        if self._producers is not None:
            return await self._get_producer(self._producers).fire_now(delay_id)
        return await self._change_delay(delay_id, "fire", None)

    async def hold_delay(self, delay_id: str) -> CancelOutcome:
        """Let a delayed message wait, also when it is due, until it is released."""
        return await self._change_delay(delay_id, "hold", None)

    async def release_delay(self, delay_id: str) -> CancelOutcome:
        """Let a held message fire: when it is due, or now if it is overdue."""
        return await self._change_delay(delay_id, "release", None)

    async def _change_delay(self, delay_id: str, action: str, when: When | None) -> CancelOutcome:
        body = {**change_body(action, when), "timeout_ms": self._proxy_timeout_ms()}
        return read_outcome(await self._post_body("delay", "messages", delay_id, body=body))

    def _get_producer(self, producers: str | Sequence[str]) -> AsyncProducerBase:
        self._home.check_process()
        if self._producer is None:
            settings = ProducerSettings(timeout_ms=self._timeout_ms, client_id=new_client_id())
            self._producer = AsyncProducerBase(producers, settings, tls=self._tls, login=self._login)
        return self._producer

    # --- sends

    @explain_arguments("docs/client.md#administration")
    async def send(
        self,
        topic: str,
        body: bytes | str,
        *,
        key: str | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        shard_key: ShardKey | None = None,
        queue: int | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        level: int | None = None,
        cron: str | None = None,
        zone: str | None = None,
        every: timedelta | None = None,
        times: int | None = None,
        catch_up: Literal["fire_once", "all", "skip"] | None = None,
        idempotency_key: str | None = None,
    ) -> records.SentMessage:
        """Send one message over the admin port. Arguments: see `Producer.send`, which is much quicker.

        The request is made once. Raises UnknownChangeError if the message may or may not be stored.
        """
        when = when_of(delay, deliver_at, cron, zone, every, times, catch_up, level)
        message = OutgoingMessage(topic, body, key, tags, properties, shard_key, queue, idempotency_key)
        fields = {**message_body(message, when, times, level), "timeout_ms": self._proxy_timeout_ms()}
        answer = await self._post_body("messages", body=fields)
        return read_row(records.SentMessage, answer)

    def _proxy_timeout_ms(self) -> int:
        """Return the time that a producer proxy gets, which leaves some for its answer."""
        return max(1, self._timeout_ms * 9 // 10)

    # --- requests

    async def _get(self, *path: str, **query: object) -> Any:
        return await self._send_request("GET", path, query, None)

    async def _list_rows(self, *path: str, limit: int = LIMIT_MAX, **query: object) -> list[Any]:
        """Return up to `limit` rows of a list, page by page. A server of the release before this one ignores
        `form`, and answers a short list completely."""
        rows: list[Any] = []
        while True:
            page, more = read_page(await self._get(*path, **query, form=2))
            rows += page
            if more is None or len(rows) >= limit:
                return rows[:limit]
            query.update(more)

    async def _post_body(self, *path: str, body: Mapping[str, Any]) -> Any:
        return await self._send_request("POST", path, {}, body)

    async def _send_request(
        self, method: str, path: tuple[str, ...], query: Mapping[str, object], body: Mapping[str, Any] | None
    ) -> Any:
        self._home.check_process()
        if not all(isinstance(segment, str) and segment for segment in path):
            raise OptionError(f"{path[1:]!r}: a name is empty or no text; allowed: 1 to 255 characters")
        request = HttpRequest(method, build_target(path, query), body)
        response, server = await self._pool.call(request, self._timeout_ms / 1000)
        return read_answer(request, response, server)


def _checked_limit(limit: int) -> int:
    check("limit", limit, 1, LIMIT_MAX)
    return limit
