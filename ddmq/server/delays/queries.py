"""Answers the admin API's requests about delayed messages and their backups.

Only the process that owns a shard can read it. Lists and counts are made of the answers of all owners, and
name the shards whose owners have not answered. Other requests about all shards are answered for those of one
process; a process without a delay service forwards them to the admin address of an owner. Stores are read
page by page in native threads, because a search for a rare topic among millions of messages takes a while,
and the service continues meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import gevent

from backend.port import Backend
from ddmq.address import parse
from ddmq.server.admin.contract.queries import DelayCountQuery
from ddmq.server.admin.figures import OtherAnswers, OtherProcesses, fetch_answers
from ddmq.server.admin.topics import WAIT_S
from ddmq.server.delays.backup import OpenShard, backup_folder, check_secret, copy_shards, make_backup
from ddmq.server.delays.choice import FOREVER_MS, Cursor, DelayChoice, format_cursor, read_choice
from ddmq.server.delays.pages import DelayPage, merge_pages
from ddmq.server.delays.rows import describe_message
from ddmq.server.http.pace import paced
from ddmq.server.http.paging import ItemPage, PageRequest
from ddmq.server.http.parameters import Query
from ddmq.server.http.routing import AdminRequest, forward_request, read_forwarded
from ddmq_common.clock import Clock
from ddmq_common.delays.command import (
    is_uuid,
    parse_delay_id,
    shard_of,
    uuid_bytes,
)
from ddmq_common.errors import CallerError, DdmqError, TryLaterError, UnsupportedError
from ddmq_common.names import DELAY_GROUP, DELAY_TOPIC
from ddmq_common.native_threads import in_thread
from delay_service.core.held_messages import HELD_FROM_MS
from delay_service.due.holds import is_held, list_holds
from delay_service.service import DelayService
from delay_service.store.port import DelayStore, DueKey, DueTimeCounts, IdKind, Pending, Scan

T = TypeVar("T")
PAGE = 500
PAGE_BYTES = 4 << 20
SHOWN_MAX = 1_000
COUNTED_MAX = 1_000_000
EXAMINED_MAX = 100_000  # messages that one answer examines for a key
CATCH_UP_S, POLL_INTERVAL_S = 3.0, 0.01  # for commands that were stored before a request
OWNERS_WAIT_S = 10.0  # for the lists of the other owners, each of which may have to catch up first
ORDER = PageRequest(sort="due_ms")  # of lists in form 2
PENDING, CANCELLED = "pending", "cancelled"
_STATES = {
    IdKind.PENDING: PENDING, IdKind.CANCELLED: CANCELLED, IdKind.TOMBSTONE: "cancelled before it was known",
    IdKind.DEAD: "dead letter",
}  # fmt: skip


class DelayQueries:
    """Answers requests about delayed messages. `timers`: the delay service of this process, or None.
    `backups`: the folder for backups."""

    def __init__(
        self, backend: Backend, timers: DelayService | None, clock: Clock, backups: Path,
        others: OtherProcesses | None = None,
    ) -> None:  # fmt: skip
        self._backend = backend
        self._timers = timers
        self._clock = clock
        self._backups = backups
        self._others = others or OtherProcesses()
        self.read_token = self._others.read_token  # of this process, for requests to others

    def answer_anywhere(self, request: AdminRequest, act: Callable[[AdminRequest], Any]) -> Any:
        """Return the answer of `act` or, if another process owns the requested shard, that process's
        answer."""
        address = None if request.is_forwarded else self._other_owner(request)
        if address is None:
            return act(request)
        return in_thread(forward_request, address, request, self.read_token())

    def _other_owner(self, request: AdminRequest) -> str | None:
        """Return the address of the owner of the requested shard, or of any owner if no delay service runs
        here."""
        service = self._timers
        shard = self._shard_of(request.path["id"])[1] if "id" in request.path else None
        if service is not None and (shard is None or shard in service.shards):
            return None
        addresses = self._owner_addresses()
        if shard is not None:
            return addresses.get(shard)
        return next(iter(addresses.values()), None)

    def _owner_addresses(self) -> dict[int, str]:
        """Return the addresses at which the owners of the shards are reached."""
        owners = self._backend.holders(DELAY_GROUP, DELAY_TOPIC, self._clock.monotonic() + WAIT_S)
        return {queue.queue_id: address for queue, address in owners.wait(WAIT_S).items() if address}

    def list_other_addresses(self) -> list[str]:
        """Return the admin addresses of the other processes that own shards; none if they are unknown."""
        owned = {} if self._timers is None else self._timers.shards
        try:
            addresses = self._owner_addresses()
        except (DdmqError, TimeoutError):
            return []
        return [address for shard, address in addresses.items() if shard not in owned]

    def list_other_owners(self) -> dict[int, str]:
        """Return, for each shard that this process does not own, the admin address of its owner; "" if that
        is not known."""
        owned = {} if self._timers is None else self._timers.shards
        try:
            addresses = self._owner_addresses()
        except (DdmqError, TimeoutError):
            addresses = {}
        return {number: addresses.get(number, "") for number in range(self._queues()) if number not in owned}

    def count_due(self, topic: str | None, start: int, end: int, step: int) -> list[DueTimeCounts]:
        """Return the numbers of waiting messages by due time, in minutes, of each open shard that this
        process owns."""
        if self._timers is None:
            return []
        return [one.store.count_due(topic, start, end, step) for one in self._open_shards()]

    def list_closed_shards(self) -> dict[int, str]:
        """Return the shards of this process that are not open, with the reasons."""
        shards = {} if self._timers is None else self._timers.shards
        return {number: shard.why for number, shard in shards.items() if not shard.running}

    def is_behind(self) -> bool:
        """Return whether this process has not processed all commands that were stored before this call."""
        if self._timers is None:
            return False
        shards = [shard for shard in self._timers.shards.values() if shard.running]
        bounds = self._backend.bounds([shard.queue for shard in shards]).wait(WAIT_S)
        return any(
            limits is not None and limits.next > (shard.position or 0)
            for shard, limits in zip(shards, bounds, strict=True)
        )

    # --- what there is

    def overview(self, _: AdminRequest) -> dict[str, Any]:
        service, behind = self._caught_up()
        lags, rows = service.lags() | behind, []
        for number, shard in service.shards.items():
            context = shard.context
            pending = sum(context.store.counts().values()) if context is not None and context.running else 0
            rows.append({
                "shard": number, "epoch": shard.epoch, "fires": not shard.why, "why": shard.why,
                "pending": pending, "orders_waiting": max(lags.get(number, -1), 0),
            })  # fmt: skip
        standbys = [
            {"shard": number, "warm": standby.is_warm, "why": standby.why}
            for number, standby in service.standbys.items()
        ]
        topics = dict(sorted(service.pending_counts().items()))
        holds = list_holds(self._backend)
        totals = {"pending": sum(topics.values())} | self._missing_shards(service)
        return {
            "health": service.health()._asdict(),
            "topics": topics,
            "shards": rows,
            "standbys": standbys,
            "set_aside": self._set_aside_topics(service, holds),
            "held": holds,
        } | totals

    def _set_aside_topics(self, service: DelayService, holds: Collection[str]) -> dict[str, str]:
        """Return the topics whose due messages are deferred because they are not available, with reasons.

        Nothing of a held topic is tried, so only the engine knows whether it is available again.
        """
        reasons: dict[str, str] = {}
        for shard in service.shards.values():
            context = shard.context
            if context is not None:
                reasons |= {
                    topic: reason
                    for topic, reason in context.set_aside.reasons.items()
                    if (topic in context.due_scans.deferred_topics and topic not in holds)
                    or self._backend.why_unavailable(topic)
                }
        return dict(sorted(reasons.items()))

    def messages(self, request: AdminRequest) -> dict[str, Any]:
        choice = read_choice(request)
        delay_page = self._list_messages(request, choice, min(max(request.query.count, 1), SHOWN_MAX))
        answer = {"messages": delay_page.rows, "next": format_cursor(delay_page.last)}
        return answer | self._describe_gaps(choice, delay_page)

    def page_messages(self, page: PageRequest, request: AdminRequest) -> ItemPage:
        """Return a page of the waiting messages, by due time; to another process, those of this one."""
        position = page.decode_position(tuple[int, int, int])
        choice = read_choice(request)._replace(text=page.text)
        choice = choice._replace(after=None if position is None else Cursor(*position))
        delay_page = self._list_messages(request, choice, page.size)
        return ItemPage(
            delay_page.rows,
            None if delay_page.last is None else page.encode_position(delay_page.last),
            delay_page.total,
            exact=delay_page.is_exact,
            more=self._describe_gaps(choice, delay_page),
        )

    def _describe_gaps(self, choice: DelayChoice, delay_page: DelayPage) -> dict[str, Any]:
        return {
            "orders_waiting": delay_page.orders_waiting, "held": self._list_holds(choice),
            "elsewhere": list(delay_page.elsewhere), "not_open": list(delay_page.not_open),
        }  # fmt: skip

    def _list_messages(self, request: AdminRequest, choice: DelayChoice, size: int) -> DelayPage:
        """Return a page of all owners; to another process, of this one. Raises TryLaterError."""
        health = self._backend.health()
        if not health.ready:
            raise TryLaterError(f"what waits is not known: {health.reason}")
        if request.is_forwarded:
            return self._list_own_messages(choice, size)
        after = {} if choice.after is None else {"after": ORDER.encode_position(choice.after)}
        others, elsewhere = self._fetch_from_owners(
            request, "/delay/messages", choice, size, {"form": "2"} | after,
            "items", "orders_waiting", "not_open",
        )  # fmt: skip
        pages = [_read_page(answer) for answer in others.answers]
        if self._timers is not None:
            pages.append(self._list_own_messages(choice, size))
        return merge_pages(pages, size, elsewhere)

    def _list_own_messages(self, choice: DelayChoice, size: int) -> DelayPage:
        service, behind = self._caught_up()
        rows, last = self._find_messages(choice, size, _describe_at)
        counts = service.pending_counts()
        total = counts.total() if choice.topic is None else counts[choice.topic]
        missing = self._missing_shards(service)
        return DelayPage(
            rows,
            last,
            total if choice._replace(after=None).includes_all else None,
            sum(behind.values()),
            missing["not_open"],
            missing["elsewhere"],
        )

    def _fetch_from_owners(
        self, request: AdminRequest, path: str, choice: DelayChoice, count: int, more: Mapping[str, str],
        *keys: str,
    ) -> tuple[OtherAnswers, list[int]]:  # fmt: skip
        """Return the answers of all other owners about a choice, and the shards whose owners have not
        answered. Raises UnsupportedError if no process with a delay service is known."""
        owners = self.list_other_owners()
        addresses = {address: parse(address) for address in owners.values() if address}
        if self._timers is None and not addresses:
            self._owner_addresses()  # raises why they are not known
            self._service()
        texts = {"topic": choice.topic, "key": choice.key, "text": choice.text}
        times = {"from_ms": choice.start, "count": count} | (
            {} if choice.end == FOREVER_MS else {"to_ms": choice.end}
        )
        query = {name: text for name, text in texts.items() if text is not None}
        query.update({name: str(number) for name, number in times.items()}, **more)
        others = fetch_answers(
            addresses, path, *keys, query=query, token=self.read_token(), caller=request.caller,
            wait_s=OWNERS_WAIT_S,
        )  # fmt: skip
        silent = [number for number, address in owners.items() if not address or address in others.silent]
        return others, silent

    def is_held(self, topic: str) -> bool:
        """Return whether the delayed messages of a topic are held."""
        return is_held(self._backend, topic)

    def _list_holds(self, choice: DelayChoice) -> dict[str, int]:
        """Return since when the delayed messages of the chosen topics are held, by topic."""
        holds = list_holds(self._backend)
        return {topic: since_ms for topic, since_ms in holds.items() if choice.has_topic(topic)}

    def _find_messages(
        self, choice: DelayChoice, count: int, convert: Callable[[Cursor, Pending], T]
    ) -> tuple[list[T], Cursor | None]:
        """Return up to `count` matching messages, each converted by `convert` (its body is freed right after
        that), and the position to continue from, which is None at the end. A search by key examines at most
        EXAMINED_MAX messages per call."""
        walks = [
            self._walk_shard(one, choice, shift_ms)
            for one in self._open_shards()
            for shift_ms in (0, HELD_FROM_MS)
        ]
        rows: list[T] = []
        examined, last = 0, None
        for position, message in merge(*walks, key=itemgetter(0)):
            if len(rows) == count or examined == EXAMINED_MAX:
                return rows, last
            examined, last = examined + choice.is_examined, position
            if choice.matches(message):
                rows.append(convert(position, message))
        return rows, None

    def _walk_shard(
        self, shard: OpenShard, choice: DelayChoice, shift_ms: int
    ) -> Iterator[tuple[Cursor, Pending]]:
        """Yield the chosen messages of a shard with their positions: those that are not held (`shift_ms` 0),
        or the held ones, whose stored due times are HELD_FROM_MS later."""
        topic, cursor = choice.topic, choice.after
        start, end = choice.start + shift_ms, min(choice.end, HELD_FROM_MS) + shift_ms
        after = None if cursor is None else cursor.after_in(shard.number)
        if after is not None:
            after = DueKey(after.due_ms + shift_ms, after.offset)
        while page := in_thread(shard.store.scan, Scan(topic, start, end, PAGE, after, PAGE_BYTES)):
            after = page[-1].key
            for message in paced(page):
                yield Cursor(message.due_ms - shift_ms, shard.number, message.offset), message

    def count(self, request: AdminRequest) -> dict[str, Any]:
        """Return the number of waiting messages of all owners; to another process, and behind `after`, of
        this one."""
        query: DelayCountQuery = request.query
        choice = read_choice(request)
        most = COUNTED_MAX if query.count is None else min(max(query.count, 1), COUNTED_MAX)
        if request.is_forwarded or choice.after is not None:
            return self._count_own_messages(choice, most)
        others, elsewhere = self._fetch_from_owners(
            request, "/delay/count", choice, most, {}, "count", "next", "orders_waiting", "not_open"
        )
        answers = others.answers
        own: dict[str, Any] = {"next": None}
        if self._timers is not None:
            own = self._count_own_messages(choice, most)
            answers = [own, *answers]
        return {
            "topic": choice.topic,
            "count": sum(each["count"] for each in answers),
            "exact": not elsewhere
            and not any(each["next"] or each["not_open"] for each in answers)
            and not any(each["orders_waiting"] for each in answers),
            "next": own["next"],
            "held": self._list_holds(choice),
            "orders_waiting": sum(each["orders_waiting"] for each in answers),
            "elsewhere": elsewhere,
            "not_open": sorted({number for each in answers for number in each["not_open"]}),
        }

    def _count_own_messages(self, choice: DelayChoice, most: int) -> dict[str, Any]:
        service, behind = self._caught_up()
        last: Cursor | None = None
        if choice.includes_all:
            counts = service.pending_counts()
            number = counts.total() if choice.topic is None else counts[choice.topic]
        else:
            rows, last = self._find_messages(choice, most, _ignore_message)
            number = len(rows)
        missing_shards = self._missing_shards(service)
        exact = not (last or behind or any(missing_shards.values()))
        answer = {"topic": choice.topic, "count": number, "exact": exact, "next": format_cursor(last)}
        gaps = {"held": self._list_holds(choice), "orders_waiting": sum(behind.values())}
        return answer | gaps | missing_shards

    def message(self, request: AdminRequest) -> dict[str, Any]:
        """Return the state and content of one delayed message, given its delay id or its uuid."""
        uuid, shard = self._shard_of(request.path["id"])
        _, behind = self._caught_up()
        store = self._store_of(shard)
        state = store.ids([uuid_bytes(uuid)])[0]
        row: dict[str, Any] = {"uuid": uuid, "shard": shard, "state": "unknown"}
        if state is None:
            if shard in behind:
                orders = f"delay shard {shard} has {behind[shard]} orders to take in"
                raise TryLaterError(f"{uuid} is not known yet: {orders}; try again")
            return row
        row["state"] = _STATES.get(state.kind, state.kind.name.lower())
        if state.kind is not IdKind.PENDING:
            return row | {"at_ms": state.at_ms, "kept_until_ms": state.forget_ms}
        message = store.get(DueKey(state.at_ms, state.offset))
        return row if message is None else row | describe_message(message, with_body=True)

    def fetch_message(self, uuid: str) -> Mapping[str, Any]:
        """Return the answer of `message` for a uuid, from this process or from the one that owns the shard.
        Raises TryLaterError."""
        request = AdminRequest({"id": uuid}, Query(), {}, "GET", "/delay/messages/{id}")
        return dict(read_forwarded(self.answer_anywhere(request, self.message), "the delay service"))

    def _shard_of(self, text: str) -> tuple[str, int]:
        """Return (uuid, shard) for a delay id or a uuid."""
        parsed = parse_delay_id(text.encode())
        if parsed is None and not is_uuid(text.encode()):
            raise CallerError(f"{text[:140]!r} is neither a delay id nor a uuid")
        uuid, queues = text if parsed is None else parsed.uuid, self._queues()
        return uuid, shard_of(uuid, queues) if parsed is None else parsed.shard % queues

    # --- backup

    def backup(self, request: AdminRequest) -> dict[str, Any]:
        """Copy every shard, each as of one moment, into a new folder below the backup folder.

        With `shards` in the body, copy only those, into a folder that another process has begun; that process
        sends its `secret`.
        """
        folder = backup_folder(request.body.folder, self._backups)
        numbers, open_shards = request.body.shards, self._open_shards()
        if numbers is not None:
            check_secret(folder, request.body.secret)
            chosen_shards = [one for one in open_shards if one.number in numbers]
            if len(chosen_shards) < len(numbers):
                raise TryLaterError("not all of these shards are open here; try again")
            in_thread(copy_shards, folder, chosen_shards)
            return {"folder": str(folder), "shards": len(chosen_shards)}
        others = self._shards_by_owner(self._foreign_shards(self._service()))
        if len(open_shards) + sum(map(len, others.values())) < self._queues():
            raise TryLaterError("not every shard is open yet; try again")
        shards = in_thread(
            make_backup, self._backups, folder, open_shards, others, self._clock.wall_ms(), self.read_token()
        )  # fmt: skip
        return {"folder": str(folder), "shards": shards}

    def _shards_by_owner(self, numbers: Sequence[int]) -> dict[str, list[int]]:
        """Return the numbers of these shards by the admin address of their owner; shards without an owner are
        left out."""
        if not numbers:
            return {}
        by_address: dict[str, list[int]] = {}
        for number, address in self._owner_addresses().items():
            if number in numbers:
                by_address.setdefault(address, []).append(number)
        return by_address

    # --- owners of shards

    def _service(self) -> DelayService:
        service = self._timers
        if service is None:
            raise UnsupportedError(
                "no delay service in this process; ask the admin port of the one that has it"
            )
        return service

    def _caught_up(self) -> tuple[DelayService, dict[int, int]]:
        """Wait until the delay service has processed every command that was stored before this request, at
        most CATCH_UP_S. Return the service, and by shard the number of commands that are still not
        processed."""
        service = self._service()
        shards = {shard.queue: shard for shard in service.shards.values() if shard.running}
        bounds = self._backend.bounds(list(shards)).wait(WAIT_S)
        ends = {
            queue: limits.next for queue, limits in zip(shards, bounds, strict=True) if limits is not None
        }
        give_up = self._clock.monotonic() + CATCH_UP_S  # a poll takes long while the loop is busy
        while behind := {
            queue.queue_id: end - (shards[queue].position or 0)
            for queue, end in ends.items()
            if shards[queue].running and end > (shards[queue].position or 0)
        }:
            if self._clock.monotonic() >= give_up:
                break
            gevent.sleep(POLL_INTERVAL_S)
        return service, behind

    def _open_shards(self) -> list[OpenShard]:
        return [
            OpenShard(number, shard.context.store)
            for number, shard in self._service().shards.items()
            if shard.context is not None and shard.context.running
        ]

    def _store_of(self, number: int) -> DelayStore:
        for shard in self._open_shards():
            if shard.number == number:
                return shard.store
        if number in self._service().shards:
            raise TryLaterError(f"delay shard {number} is not open yet; try again")
        raise TryLaterError(f"delay shard {number} is held by another delay service; ask its admin port")

    def _missing_shards(self, service: DelayService) -> dict[str, list[int]]:
        """Return the shards whose messages are missing from answers of this process: those of other
        processes, and those that are not open now."""
        closed = [number for number, shard in service.shards.items() if not shard.running]
        return {"elsewhere": self._foreign_shards(service), "not_open": closed}

    def _foreign_shards(self, service: DelayService) -> list[int]:
        return [number for number in range(self._queues()) if number not in service.shards]

    def _queues(self) -> int:
        info = self._backend.topic(DELAY_TOPIC)
        if info is None:
            raise TryLaterError("the delay service has not started yet; try again")
        return info.queues


def _read_page(answer: Mapping[str, Any]) -> DelayPage:
    """Return the page that another owner lists of its shards, in form 2."""
    behind = ORDER._replace(after=answer.get("next") or "").decode_position(tuple[int, int, int])
    last = None if behind is None else Cursor(*behind)
    return DelayPage(answer["items"], last, answer.get("total"), answer["orders_waiting"], answer["not_open"])


def _describe_at(position: Cursor, message: Pending) -> dict[str, Any]:
    return describe_message(message) | {"shard": position.shard, "offset": position.offset}


def _ignore_message(_: Cursor, __: Pending) -> None:
    """Return nothing for a message that is only counted."""
