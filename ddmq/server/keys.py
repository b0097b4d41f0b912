"""Order keys as operators write them, and what can be done about one that is blocked.

A key is JSON: "abc", 17, ["a","b"]. On a command line quotes are easily lost, so text that is not JSON is
taken as a string, and a number (or true, null, …) that names no blocked key is tried as a string as well.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import msgspec

from ddmq_common.errors import CallerError
from proxy_consumer.order_keys.canonical import bounded, text_of_raw
from proxy_consumer.service import ConsumerService

LIMIT_DEFAULT = 20
LIMIT_MAX = 1_000
KEY_CHARS_MAX = 100_000
ACTIONS = ("park", "skip", "replay")


def readings(text: str) -> list[str]:
    """What `text` may mean, as canonical JSON, the likeliest first. Raises CallerError."""
    if not text or len(text) > KEY_CHARS_MAX:
        raise CallerError(f"key has {len(text)} characters; allowed: 1 to {KEY_CHARS_MAX}")
    as_text = _canonical(json.dumps(text, ensure_ascii=False))
    if text.startswith("sha256:"):  # what stands for a very long key
        return [text, as_text]
    try:
        value = json.loads(text)
        found = "null" if value is None else _canonical(text.strip())
    except (ValueError, RecursionError):
        return [as_text]
    return [found] if isinstance(value, str) else [found, as_text]


def _canonical(text: str) -> str:
    """As the proxies compare keys. Raises ValueError."""
    try:
        return bounded(text_of_raw(text.encode()) or "null")
    except (UnicodeEncodeError, msgspec.DecodeError) as error:
        raise ValueError(str(error)) from error


def act(consumer: ConsumerService, group: str, action: str, text: str) -> dict[str, Any]:
    """Park, skip or replay one key; says which one it was."""
    does: dict[str, Callable[[str, str], None]] = {
        "park": consumer.park_key,
        "skip": consumer.skip_key,
        "replay": consumer.replay_key,
    }
    if action not in does:
        raise CallerError(f"action is {action!r}; allowed: {', '.join(ACTIONS)}")
    refused: CallerError | None = None
    for key in readings(text):
        try:
            does[action](group, key)
        except CallerError as error:
            refused = refused or error
            continue
        return {"group": group, "key": key, "action": action}
    assert refused is not None
    raise refused


def rows(consumer: ConsumerService, group: str, limit: int) -> list[dict[str, Any]]:
    """The blocked keys of a group at this proxy, those that wait longest first."""
    if not 1 <= limit <= LIMIT_MAX:
        raise CallerError(f"limit is {limit}; allowed: 1 to {LIMIT_MAX}")
    found = sorted(consumer.group_keys(group, limit), key=lambda each: (each.since_ms, each.key))
    return [dataclasses.asdict(each) for each in found]
