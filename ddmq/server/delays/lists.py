"""Answers the admin API's requests for what waits: an overview, lists and counts of delayed messages.

They are made of the answers of all processes that own shards, and name the shards whose owners have not
answered. Stores are read page by page in native threads, because a search for a rare topic among millions of
messages takes a while, and the service continues meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import merge
from operator import itemgetter
from typing import Any, TypeVar

from ddmq.server.admin.contract.queries import DelayCountQuery
from ddmq.server.delays.backup import OpenShard
from ddmq.server.delays.choice import (
    FOREVER_MS,
    Cursor,
    DelayChoice,
    ListPosition,
    format_cursor,
    read_choice,
)
from ddmq.server.delays.owners import DelayOwners, OwnShards
from ddmq.server.delays.pages import Coverage, DelayPage, find_coverage, merge_overviews, merge_pages
from ddmq.server.delays.rows import CONTENT_TEXTS, describe_message
from ddmq.server.http.pace import paced
from ddmq.server.http.paging import ItemPage, PageRequest
from ddmq.server.http.routing import AdminRequest
from ddmq_common.errors import DamagedError, StorageError, TryLaterError
from ddmq_common.native_threads import in_thread
from delay_service.core.held_messages import HELD_FROM_MS
from delay_service.due.holds import list_holds
from delay_service.service import DelayService
from delay_service.store.port import DueKey, Pending, Scan

T = TypeVar("T")
PAGE = 500
PAGE_BYTES = 4 << 20
SHOWN_MAX = 1_000
COUNTED_MAX = 1_000_000
READS_MAX = 4  # of the shards of this process for one answer
EXAMINED_MAX = 100_000  # messages that one answer examines for a key
ORDER = PageRequest(sort="due_ms")  # of lists in form 2


class DelayLists:
    """Answers requests for what waits in the shards of all owners."""

    def __init__(self, owners: DelayOwners) -> None:
        self._owners = owners
        self._backend = owners.backend

    def describe_shards(self, request: AdminRequest) -> dict[str, Any]:
        """Return the topics and shards of all owners; to another process, of this one."""
        if request.is_forwarded:
            return self._describe_own_shards()
        keys = ("health", "topics", "shards", "standbys", "set_aside", "not_open", "elsewhere")
        overviews = self._owners.fetch_answers(request, "/delay", {}, *keys)
        if self._owners.timers is not None:
            overviews = [self._describe_own_shards(), *overviews]
        coverage = self._find_coverage(each["elsewhere"] for each in overviews)
        return merge_overviews(overviews, list_holds(self._backend), coverage.missing)

    def _find_coverage(self, lists: Iterable[Collection[int]]) -> Coverage:
        return find_coverage(self._owners.count_shards(), lists)

    def _describe_own_shards(self) -> dict[str, Any]:
        own = self._owners.catch_up()
        service = own.service
        lags, rows = service.lags() | own.behind, []
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
        topics, holds = service.pending_counts(), list_holds(self._backend)
        return {
            "health": service.health()._asdict(),
            "topics": dict(sorted(topics.items())),
            "shards": rows,
            "standbys": standbys,
            "set_aside": self._set_aside_topics(service, holds),
            "held": holds,
            "pending": topics.total(),
        } | self._owners.list_missing_shards(service)

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

    def list_messages(self, request: AdminRequest) -> dict[str, Any]:
        """Return a page of the waiting messages, by due time, in form 1."""
        choice = read_choice(request)
        delay_page = self._collect_page(request, choice, min(max(request.query.count, 1), SHOWN_MAX))
        answer = {"messages": delay_page.rows, "next": format_cursor(delay_page.last)}
        return answer | self._describe_gaps(choice, delay_page)

    def page_messages(self, page: PageRequest, request: AdminRequest) -> ItemPage:
        """Return a page of the waiting messages, by due time; to another process, those of this one.

        A shard that an earlier page lacks is named by all pages behind it: its messages up to there were
        passed over.
        """
        position = page.decode_position(ListPosition)
        choice = read_choice(request)._replace(
            text=page.text, after=None if position is None else position.to_cursor()
        )
        passed = () if position is None else position.passed
        delay_page = self._collect_page(request, choice, page.size).with_passed(passed)
        following = None
        if delay_page.last is not None:
            lacking = {*delay_page.elsewhere, *delay_page.not_open}
            following = page.encode_position(ListPosition(*delay_page.last, tuple(sorted(lacking))))
        return ItemPage(
            delay_page.rows, following, delay_page.total, delay_page.is_exact,
            more=self._describe_gaps(choice, delay_page),
        )  # fmt: skip

    def _describe_gaps(self, choice: DelayChoice, delay_page: DelayPage) -> dict[str, Any]:
        return {
            "orders_waiting": delay_page.orders_waiting, "held": self._list_holds(choice),
            "elsewhere": list(delay_page.elsewhere), "not_open": list(delay_page.not_open),
        }  # fmt: skip

    def _collect_page(self, request: AdminRequest, choice: DelayChoice, size: int) -> DelayPage:
        """Return a page of all owners; to another process, of this one. Raises TryLaterError."""
        health = self._backend.health()
        if not health.ready:
            raise TryLaterError(f"what waits is not known: {health.reason}")
        if request.is_forwarded:
            return self._list_own_messages(choice, size)
        after = {} if choice.after is None else {"after": ORDER.encode_position(choice.after)}
        query = _write_query(choice, size) | {"form": "2"} | after
        answers = self._owners.fetch_answers(
            request, "/delay/messages", query, "items", "orders_waiting", "not_open", "elsewhere"
        )
        pages = [_read_page(answer) for answer in answers]
        if self._owners.timers is not None:
            pages.append(self._list_own_messages(choice, size))
        coverage = self._find_coverage(page.elsewhere for page in pages)
        merged = merge_pages(pages, size, coverage.missing)
        return merged if coverage.is_single else merged._replace(total=None)  # a shard is in two totals

    def _list_own_messages(self, choice: DelayChoice, size: int) -> DelayPage:
        def read_page(own: OwnShards) -> DelayPage:
            total = own.count_pending(choice.topic)
            rows, last = self._find_messages(own.open, choice, size, _describe_at)
            return DelayPage(
                rows,
                last,
                total if choice._replace(after=None).includes_all else None,
                sum(own.behind.values()),
                own.not_open,
                own.elsewhere,
            )

        return self._read_own_shards(read_page)

    def _read_own_shards(self, read: Callable[[OwnShards], T]) -> T:
        """Return the result of `read` for the open shards of this process. A shard that is closed meanwhile,
        because it moves to another process, ends the read, and the others are read again. Raises
        TryLaterError."""
        for _ in range(READS_MAX):
            own = self._owners.catch_up()
            try:
                return read(own)
            except DamagedError:
                raise
            except StorageError:
                still_open = self._owners.list_open_shards()
                if all(shard in still_open for shard in own.open):
                    raise
        raise TryLaterError("delay shards are moving to another process; try again")

    def _list_holds(self, choice: DelayChoice) -> dict[str, int]:
        """Return since when the delayed messages of the chosen topics are held, by topic."""
        holds = list_holds(self._backend)
        return {topic: since_ms for topic, since_ms in holds.items() if choice.has_topic(topic)}

    def _find_messages(
        self,
        shards: Iterable[OpenShard],
        choice: DelayChoice,
        count: int,
        convert: Callable[[Cursor, Pending], T],
    ) -> tuple[list[T], Cursor | None]:
        """Return up to `count` matching messages, each converted by `convert` (its body is freed right after
        that), and the position to continue from, which is None at the end. A search by key examines at most
        EXAMINED_MAX messages per call."""
        walks = [self._walk_shard(one, choice, shift_ms) for one in shards for shift_ms in (0, HELD_FROM_MS)]
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

    def count_messages(self, request: AdminRequest) -> dict[str, Any]:
        """Return the number of waiting messages of all owners; to another process, of this one. Only the
        count of a single owner can be continued."""
        query: DelayCountQuery = request.query
        choice = read_choice(request)
        most = COUNTED_MAX if query.count is None else min(max(query.count, 1), COUNTED_MAX)
        if request.is_forwarded:
            return self._count_own_messages(choice, most)
        keys = ("count", "next", "orders_waiting", "not_open", "elsewhere")
        after = format_cursor(choice.after)
        behind = {} if after is None else {"after": after}
        texts = _write_query(choice, most) | behind
        answers = self._owners.fetch_answers(request, "/delay/count", texts, *keys)
        if self._owners.timers is not None:
            answers = [self._count_own_messages(choice, most), *answers]
        number = sum(each["count"] for each in answers)
        is_cut = not choice.includes_all and (number > most or any(each["next"] for each in answers))
        coverage = self._find_coverage(each["elsewhere"] for each in answers)
        waiting = sum(each["orders_waiting"] for each in answers)
        closed = sorted({number for each in answers for number in each["not_open"]})
        return {
            "topic": choice.topic,
            "count": min(number, most) if is_cut else number,
            "exact": not (is_cut or waiting or closed or coverage.missing) and coverage.is_single,
            "next": answers[0]["next"] if len(answers) == 1 and not coverage.missing else None,
            "held": self._list_holds(choice),
            "orders_waiting": waiting,
            "elsewhere": coverage.missing,
            "not_open": closed,
        }

    def _count_own_messages(self, choice: DelayChoice, most: int) -> dict[str, Any]:
        def count_in_shards(own: OwnShards) -> dict[str, Any]:
            last: Cursor | None = None
            if choice.includes_all:
                number = own.count_pending(choice.topic)
            else:
                rows, last = self._find_messages(own.open, choice, most, _ignore_message)
                number = len(rows)
            return {
                "topic": choice.topic,
                "count": number,
                "exact": not (last or own.behind or own.elsewhere or own.not_open),
                "next": format_cursor(last),
                "held": self._list_holds(choice),
                "orders_waiting": sum(own.behind.values()),
                "elsewhere": own.elsewhere,
                "not_open": own.not_open,
            }

        return self._read_own_shards(count_in_shards)


def _write_query(choice: DelayChoice, count: int) -> dict[str, str]:
    """Return the query with which another owner makes the same choice."""
    texts = {"topic": choice.topic, "key": choice.key, "text": choice.text}
    times = {"from_ms": choice.start, "to_ms": None if choice.end == FOREVER_MS else choice.end}
    return {
        name: str(value) for name, value in (texts | times | {"count": count}).items() if value is not None
    }


def _read_page(answer: Mapping[str, Any]) -> DelayPage:
    """Return the page that another owner lists of its shards, in form 2."""
    last = ORDER._replace(after=answer.get("next") or "").decode_position(ListPosition)
    rows = [_restore_row(row) for row in answer["items"]]
    return DelayPage(
        rows, None if last is None else last.to_cursor(), answer.get("total"), answer["orders_waiting"],
        answer["not_open"], answer["elsewhere"],
    )  # fmt: skip


def _restore_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of form 2 with the empty texts that form 1 has."""
    texts = ("id",) if "error" in row else ("id", *CONTENT_TEXTS)
    return dict.fromkeys(texts, "") | dict(row)


def _describe_at(position: Cursor, message: Pending) -> dict[str, Any]:
    return describe_message(message) | {"shard": position.shard, "offset": position.offset}


def _ignore_message(_: Cursor, __: Pending) -> None:
    """Return nothing for a message that is only counted."""
