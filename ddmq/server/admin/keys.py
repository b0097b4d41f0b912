"""Order keys as operators write them, and what can be done about one that is blocked.

A key is JSON: "abc", 17, ["a","b"]. On a command line quotes are easily lost, so text that is not JSON is
taken as a string, and so is a number (or true, null, …) when only that string is blocked.

The key of a whole queue (order key QID) is shown as "TOPIC/QUEUE"; inside, the queue has the name that
clients know it by. Either is understood.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from backend.completion import Completion
from backend.records import QueueRef
from ddmq.server.admin.topics import WAIT_S
from ddmq.server.http.routing import NoSuchGroupError
from ddmq_common.errors import CallerError
from proxy_consumer.groups.blocked_keys import REASON_OPERATOR, BlockedKey
from proxy_consumer.groups.ordering import GroupOrdering, KeyOutcome
from proxy_consumer.groups.stats import GroupSummary
from proxy_consumer.order_keys.canonical import bound_text, text_of_raw
from proxy_consumer.service import ConsumerService

LIMIT_DEFAULT = 20
LIMIT_MAX = 1_000
KEY_CHARS_MAX = 100_000


def possible_keys(text: str) -> list[str]:
    """Return the keys that `text` may mean, as canonical JSON, the most likely one first. Raises
    CallerError."""
    if not text or len(text) > KEY_CHARS_MAX:
        raise CallerError(f"key has {len(text)} characters; allowed: 1 to {KEY_CHARS_MAX}")
    as_text = _canonical_key(json.dumps(text, ensure_ascii=False))
    if text.startswith("sha256:"):  # what stands for a very long key
        return [text, as_text]
    try:
        value = json.loads(text)
        key = "null" if value is None else _canonical_key(text.strip())
    except (ValueError, RecursionError):
        return [as_text]
    return [key] if isinstance(value, str) else [key, as_text]


def _canonical_key(text: str) -> str:
    """Return a key in the form in which the proxies compare keys. Raises ValueError."""
    try:
        return bound_text(text_of_raw(text.encode()) or "null")
    except (UnicodeEncodeError, msgspec.DecodeError) as error:
        raise ValueError(str(error)) from error


def act_on_key(
    consumer: ConsumerService, group: str, action: str, text: str, take_away: bool = False
) -> dict[str, Any]:
    """Park, skip or replay the key that `text` names; the change is durable on return. Raises CallerError.

    The answer contains the key, whether it was `parked` before, and one entry for the first unfinished
    message of each of its chains at this proxy (one chain, unless the key has several scopes): the message's
    earlier state, and `outcome`, one of the words in groups/ordering.py.
    """
    if take_away and action != "replay":
        raise CallerError(f"take_away goes with replay, not with {action}")
    ordering = load_keys(consumer, group, hold=True)
    does: dict[str, Callable[[str], Completion[list[KeyOutcome]]]] = {
        "park": ordering.park,
        "skip": ordering.skip,
        "replay": partial(ordering.replay, take_away=take_away),
    }
    key = choose_key(ordering, possible_keys(text))
    names = {internal: shown_key(queue) for internal, queue in chain_queues(ordering).items()}
    inside = {chain: internal for internal, chain in names.items()}
    internal = inside.get(key, key)
    parked = internal in ordering.parked_keys
    outcomes = does[action](internal).wait(WAIT_S)
    heads = [
        dataclasses.asdict(each.head) | {"key": names.get(key, key), "outcome": each.outcome}
        for each in outcomes
    ]
    return {"group": group, "key": names.get(key, key), "action": action, "parked": parked, "heads": heads}


def chain_queues(ordering: GroupOrdering) -> dict[str, QueueRef]:
    """Return the queues of a group that orders by queue (order key QID), by their canonical keys."""
    return {
        _canonical_key(json.dumps(f"{queue.topic}/{qid}")): queue
        for queue, qid in ordering.single_chain_queues().items()
    }


def shown_key(queue: QueueRef) -> str:
    """Return the key that is shown to people for a queue whose messages are all one chain."""
    return _canonical_key(json.dumps(f"{queue.topic}/{queue.queue_id}"))


def choose_key(ordering: GroupOrdering, candidates: list[str]) -> str:
    """Choose one of the candidate keys: the first one that is blocked or parked. If there is none, choose the
    plain text if the group's order key is KEY (which is always text), else the first candidate."""
    if len(candidates) == 1:
        return candidates[0]
    there = {each.key for each in ordering.blocked_keys(LIMIT_MAX)} | ordering.parked_keys
    for key in candidates:
        if key in there:
            return key
    return candidates[-1] if ordering.order_keys == {"KEY"} else candidates[0]


def load_keys(consumer: ConsumerService, group: str, *, hold: bool = False) -> GroupOrdering:
    """Return the order keys of a group, whose ordered queues this proxy acquires if no proxy owns them.

    `hold`: the caller will change a key. Raises TryLaterError if the queues are not loaded in time.
    """
    require_group(consumer, group)
    return consumer.load_order_keys(group, hold=hold).wait(WAIT_S)


def list_blocked_keys(consumer: ConsumerService, group: str, limit: int) -> list[dict[str, Any]]:
    """Load the keys of a group, and return the blocked ones like `describe_blocked_keys`."""
    if not 1 <= limit <= LIMIT_MAX:
        raise CallerError(f"limit is {limit}; allowed: 1 to {LIMIT_MAX}")
    return describe_blocked_keys(consumer, group, load_keys(consumer, group), limit)


def describe_blocked_keys(
    consumer: ConsumerService, group: str, ordering: GroupOrdering, limit: int
) -> list[dict[str, Any]]:
    """Return the blocked keys of a group at this proxy, the longest blocked first, then other parked keys.
    Keys whose first message was never delivered come after those whose first message was."""
    blocked = sorted(
        ordering.blocked_keys(limit), key=lambda each: (not each.since_ms, each.since_ms, each.key)
    )
    there = {each.key for each in blocked}
    blocked += [
        BlockedKey(key, "", -1, -1, 0, 0, "parked", "", 0, False, REASON_OPERATOR)
        for key in sorted(ordering.parked_keys - there)
    ]
    queues = chain_queues(ordering)
    ends = read_next_offsets(consumer, group) if queues and blocked else {}
    return [dataclasses.asdict(add_waiting(each, queues.get(each.key), ends)) for each in blocked[:limit]]


def read_next_offsets(consumer: ConsumerService, group: str) -> dict[tuple[str, int], int]:
    """Return the offset that the next message of each queue will get, by topic and queue number."""
    stats = consumer.group_stats(group).wait(WAIT_S)
    return {(each.topic, queue.queue_id): queue.next for each in stats for queue in each.queues}


def add_waiting(row: BlockedKey, queue: QueueRef | None, ends: Mapping[tuple[str, int], int]) -> BlockedKey:
    """Return the row of a key; if the key is a whole `queue`, every message behind the first one counts as
    waiting. `ends`: the next offset of each queue."""
    end = None if queue is None else ends.get((queue.topic, queue.queue_id))
    if queue is None or end is None:
        return row
    behind = 0 if row.offset < 0 else end - row.offset - 1
    return dataclasses.replace(row, key=shown_key(queue), waiting=max(row.waiting, behind), more=False)


def require_group(consumer: ConsumerService, group: str) -> GroupSummary:
    """Return the group. Raises NoSuchGroupError, whose text says how to list the groups."""
    summary = consumer.find_group(group)
    if summary is None:
        raise NoSuchGroupError(f"group {group!r} does not exist; `ddmq group list` shows those that do")
    return summary
