"""The blocked and parked keys of all groups at this process's consumer proxy, page by page, and their counts.

Nothing is loaded for this listing: a proxy knows only the keys of the queues that it owns. The queues with
unfinished messages that it does not own are listed as missing: another proxy owns them, or none does because
no client of the group pulls. admin/keys.py lists the keys of one group, and acquires its queues.

Keys are listed by group and by the position of their first message, so that pages neither need all keys in
memory nor a sort of all of them. A request examines at most EXAMINED_MAX keys.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from backend.completion import Completion
from backend.port import Backend
from backend.records import QueueRef
from ddmq.server.admin import keys
from ddmq.server.admin.consumed import Owners, read_owners, start_owners_lookup
from ddmq.server.admin.contract.queries import KeysQuery
from ddmq.server.admin.search.error_classes import classify_error
from ddmq.server.admin.topics import WAIT_S
from ddmq.server.http.pace import paced
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError
from proxy_consumer.groups.blocked_keys import REASON_OPERATOR, BlockedKey, KeyHead, Now
from proxy_consumer.groups.head_walk import HeadPosition
from proxy_consumer.groups.ordering import GroupOrdering
from proxy_consumer.service import ConsumerService

COUNT_MAX = 1_000
EXAMINED_MAX = 2_000
KEYS_STEP = 16  # that are examined between two looks at the clock
ERRORS_MAX = 100  # classes that are listed
LOOKUPS_MAX = 100  # groups whose absent queues are looked up
MISSING_MAX = 100  # rows
OTHER_PROXY, NO_PROXY, LOADING, UNKNOWN = "other proxy", "no proxy", "loading", "unknown"


class KeyPosition(NamedTuple):
    """The position of a key in the listing.

    `headless`: 1 for a parked key without a message at this proxy, which come last in their group, by `key`;
    else 0, and the position of the key's first message is stated.
    """

    group: str = ""
    headless: int = 0
    topic: str = ""
    queue_id: int = -1
    offset: int = -1
    key: str = ""

    def encode(self) -> str:
        """Encode the position as the opaque text that `after` of the next request takes."""
        return base64.urlsafe_b64encode(msgspec.json.encode(tuple(self))).decode().rstrip("=")


def decode_position(text: str) -> KeyPosition:
    """Decode the text of `KeyPosition.encode`. Raises CallerError."""
    try:
        payload = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return KeyPosition(*msgspec.json.decode(payload, type=tuple[str, int, str, int, int, str]))
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise CallerError(f"after is {text[:120]!r}; allowed: `next` of an earlier answer") from error


class Candidate(Protocol):
    """A key that a request examines. Each property is computed when it is read."""

    @property
    def position(self) -> KeyPosition: ...
    @property
    def is_blocked(self) -> bool: ...
    @property
    def key(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def error(self) -> str: ...
    @property
    def waiting(self) -> int: ...
    @property
    def has_more(self) -> bool: ...
    @property
    def failing_since_ms(self) -> int | None: ...

    def describe_key(self) -> BlockedKey:
        """Describe the key at this moment."""
        ...


class KeySelection(NamedTuple):
    """The filter by which a request chooses keys; None matches all. `text`: a substring of key or error."""

    group: str | None = None
    state: str | None = None
    error: str | None = None
    text: str | None = None

    def matches_key(self, key: Candidate) -> bool:
        """Return whether a key of the selected group is blocked or parked, and matches the filter."""
        return (
            key.is_blocked
            and self.state in (None, key.state)
            and (self.error is None or self.error == classify_error(key.error))
            and (self.text is None or self.text in key.key or self.text in key.error)
        )


class ErrorCounts:
    """The numbers of keys by the class of their error. `total`: of all keys."""

    def __init__(self) -> None:
        self.total = 0
        self._rows: dict[str, dict[str, Any]] = {}

    def add(self, key: Candidate) -> None:
        """Count one key, the messages that wait behind it, and the time since when it has been failing."""
        self.total += 1
        name = classify_error(key.error)
        row = self._rows.get(name)
        if row is None:
            row = {"error": name, "keys": 0, "waiting": 0, "more": False, "failing_since_ms": None}
            self._rows[name] = row
        row["keys"] += 1
        row["waiting"] += key.waiting
        row["more"] = row["more"] or key.has_more
        since, first = key.failing_since_ms, row["failing_since_ms"]
        if since is not None and (first is None or since < first):
            row["failing_since_ms"] = since

    def as_rows(self) -> list[dict[str, Any]]:
        """Return the rows of the ERRORS_MAX classes with the most keys, the largest first."""
        return sorted(self._rows.values(), key=lambda row: (-row["keys"], row["error"]))[:ERRORS_MAX]


class KeysPage(NamedTuple):
    """One page of keys. `next`: the position after which the next page begins, None at the end; `complete`:
    whether every key behind the beginning of this page was examined, and counted if it matches."""

    rows: list[tuple[KeyPosition, BlockedKey, int | None]]
    counts: ErrorCounts
    next: KeyPosition | None
    complete: bool


def collect_page(candidates: Iterable[Candidate | None], selection: KeySelection, count: int) -> KeysPage:
    """Collect the first `count` matching keys, and count all matching keys among the first EXAMINED_MAX."""
    counts = ErrorCounts()
    rows: list[tuple[KeyPosition, BlockedKey, int | None]] = []
    examined, last, complete = 0, None, True
    for each in candidates:
        if each is None:
            continue
        if examined >= EXAMINED_MAX:
            complete = False
            break
        examined, last = examined + 1, each
        if not selection.matches_key(each):
            continue
        counts.add(each)
        if len(rows) < count:
            rows.append((each.position, each.describe_key(), each.failing_since_ms))
    if count and len(rows) == count and (counts.total > count or not complete):
        return KeysPage(rows, counts, rows[-1][0], complete)
    return KeysPage(rows, counts, None if complete or last is None else last.position, complete)


class HeadCandidate:
    """A key with a message at this proxy that is not finished. `names`: shown keys of whole queues, by their
    internal keys.

    The key is blocked if that message has failed, if others wait behind it, or if the key has been failing.
    """

    __slots__ = ("_group", "_head", "_names", "_now", "_ordering")

    def __init__(
        self, group: str, ordering: GroupOrdering, head: KeyHead, now: Now, names: Mapping[str, str]
    ) -> None:
        self._group = group
        self._ordering = ordering
        self._head = head
        self._now = now
        self._names = names

    @property
    def position(self) -> KeyPosition:
        ref = self._head.queue.ref
        return KeyPosition(self._group, 0, ref.topic, ref.queue_id, self._head.offset)

    @property
    def is_blocked(self) -> bool:
        head = self._head
        parked = self._ordering.parked_keys
        held_up = head.was_tried or head.chain.has_waiting or head.is_failing
        return held_up or bool(parked and head.chain.key in parked)

    @property
    def key(self) -> str:
        key = self._head.chain.key
        return self._names.get(key, key)

    @property
    def state(self) -> str:
        return self._head.shown_state

    @property
    def error(self) -> str:
        return self._head.error

    @property
    def waiting(self) -> int:
        return len(self._head.chain.indexed)

    @property
    def has_more(self) -> bool:
        return bool(self._head.chain.unindexed)

    @property
    def failing_since_ms(self) -> int | None:
        return self._head.failing_since_ms(self._now)

    def describe_key(self) -> BlockedKey:
        """Describe the key at this moment."""
        return self._ordering.describe_head(self._head, self._now)


class ParkedCandidate(NamedTuple):
    """A parked key without a message at this proxy."""

    position: KeyPosition
    key: str
    is_blocked: bool = True
    state: str = "parked"
    error: str = ""
    waiting: int = 0
    has_more: bool = False
    failing_since_ms: int | None = None

    def describe_key(self) -> BlockedKey:
        """Describe the key; it has no message."""
        return BlockedKey(self.key, "", -1, -1, 0, 0, self.state, "", 0, False, REASON_OPERATOR)


def walk_keys(
    consumer: ConsumerService, groups: Iterable[str], after: KeyPosition
) -> Iterator[Candidate | None]:
    """Yield the keys with messages, and the parked keys, of the groups behind a position, in order.

    None stands for a step that yields no key.
    """
    for name in groups:
        if name < after.group:
            continue
        yield None
        try:
            ordering = consumer.order_keys(name)
        except CallerError:
            continue  # the group was deleted meanwhile
        begin = after if name == after.group else KeyPosition()
        names = {key: keys.shown_key(queue) for key, queue in keys.chain_queues(ordering).items()}
        if not begin.headless:
            yield from _walk_heads(name, ordering, HeadPosition(*begin[2:5]), names)
        for key in sorted(ordering.parked_keys):
            if (not begin.headless or key > begin.key) and not ordering.has_head(key):
                yield ParkedCandidate(KeyPosition(name, 1, key=key), names.get(key, key))


def _walk_heads(
    group: str, ordering: GroupOrdering, after: HeadPosition, names: Mapping[str, str]
) -> Iterator[Candidate | None]:
    now = ordering.now()
    for head in ordering.walk_heads(after):
        yield None if head is None else HeadCandidate(group, ordering, head, now, names)


def list_keys(
    backend: Backend,
    consumer: ConsumerService,
    clock: Clock,
    selection: KeySelection,
    after: KeyPosition,
    count: int,
) -> dict[str, Any]:
    """Return a page of the keys that match, the counts of all of them, and the queues whose keys are unknown.

    Raises CallerError, or NoSuchGroupError for a selected group that does not exist.
    """
    if selection.group is not None:
        keys.require_group(consumer, selection.group)
    names = consumer.ordered_groups() if selection.group is None else [selection.group]
    page = collect_page(paced(walk_keys(consumer, names, after), KEYS_STEP), selection, count)
    missing, unchecked = find_missing(backend, consumer, clock, names)
    by_error = page.counts.as_rows()
    return {
        "keys": complete_rows(consumer, page),
        "next": None if page.next is None else page.next.encode(),
        "total": page.counts.total,
        "complete": page.complete,
        "exact": page.complete and not missing and not unchecked,
        "by_error": by_error,
        "by_error_others": page.counts.total - sum(row["keys"] for row in by_error),
        "missing": missing[:MISSING_MAX],
        "missing_more": max(0, len(missing) - MISSING_MAX) + unchecked,
    }


def complete_rows(consumer: ConsumerService, page: KeysPage) -> list[dict[str, Any]]:
    """Return the rows of the answer; behind a key that is a whole queue all messages of the queue wait."""
    queues = {name: _find_chain_queues(consumer, name) for name in {each[0].group for each in page.rows}}
    ends = {name: keys.read_next_offsets(consumer, name) for name, chains in queues.items() if chains}
    rows = []
    for position, row, failing_since_ms in page.rows:
        group = position.group
        complete = keys.add_waiting(row, queues[group].get(row.key), ends.get(group, {}))
        fields = dataclasses.asdict(complete)
        fields |= {name: fields[name] or None for name in ("since_ms", "leased_ms", "until_ms")}
        if not row.topic:
            fields |= {"topic": None, "queue_id": None, "offset": None}
        facts = {"error_class": classify_error(row.error), "failing_since_ms": failing_since_ms}
        rows.append({"group": group} | fields | facts)
    return rows


def _find_chain_queues(consumer: ConsumerService, group: str) -> dict[str, QueueRef]:
    try:
        return keys.chain_queues(consumer.order_keys(group))
    except CallerError:
        return {}  # the group was deleted meanwhile


def find_missing(
    backend: Backend, consumer: ConsumerService, clock: Clock, groups: Iterable[str]
) -> tuple[list[dict[str, Any]], int]:
    """Return a row for each topic and proxy with unfinished messages whose keys are not known here, and the
    number of groups beyond LOOKUPS_MAX that were not looked up."""
    pending: list[tuple[str, Completion[Any]]] = []
    unchecked = 0
    for name in paced(groups):
        try:
            absent = consumer.find_absent_queues(name)
            if absent and len(pending) < LOOKUPS_MAX:
                pending.append((name, consumer.group_stats(name)))
            elif absent:
                unchecked += 1
        except CallerError:
            continue  # the group was deleted meanwhile
    rows: list[dict[str, Any]] = []
    lookups = []
    for name, counted in paced(pending):
        for each in counted.wait(WAIT_S):
            behind = [queue.queue_id for queue in each.queues if queue.lag and not queue.held]
            if behind and each.config.order_key:
                lookup = start_owners_lookup(backend, clock, name, each.topic)
                lookups.append((name, each.topic, behind, lookup))
    for name, topic, behind, lookup in paced(lookups):
        owners = read_owners(lookup)
        by_owner: dict[tuple[str, str | None], list[int]] = {}
        for queue_id in behind:
            by_owner.setdefault(_explain_absence(owners, queue_id, consumer.address), []).append(queue_id)
        rows += [
            {"group": name, "topic": topic, "queues": queue_ids, "why": why, "holder": holder}
            for (why, holder), queue_ids in by_owner.items()
        ]
    return rows, unchecked


def _explain_absence(owners: Owners | None, queue_id: int, own: str) -> tuple[str, str | None]:
    """Return why the keys of a queue are not known here, and the proxy that knows them."""
    if owners is None:
        return UNKNOWN, None
    holder = owners.get(queue_id)
    if holder is None:
        return NO_PROXY, None
    return (LOADING, None) if own and holder == own else (OTHER_PROXY, holder or None)


def selection_of(query: KeysQuery) -> KeySelection:
    """Return the filter that a query states."""
    return KeySelection(query.group, query.state, query.error, query.text)


def position_of(query: KeysQuery) -> KeyPosition:
    """Return the position after which the page of a query begins. Raises CallerError."""
    return KeyPosition() if query.after is None else decode_position(query.after)
