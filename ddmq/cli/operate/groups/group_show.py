"""One group as people see it: a few lines a subscription, its queues, and the keys that are blocked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ddmq.cli.operate.groups.key_actions import client_text
from ddmq.cli.operate.groups.pause import paused_age
from ddmq.cli.operate.stats import drain_text, nobody_text, retry_path
from ddmq.cli.output import cell, hint, print_alert, print_facts, print_line, print_table
from ddmq.moments import format_age
from ddmq.settings import BY_NAME, format_value, list_differences

QUEUE_COLUMNS = (
    "queue", "committed", "next", "lag", "oldest", "in_flight", "retrying", "ack_span", "holder"
)  # fmt: skip
KEY_COLUMNS = ("key", "since", "attempts", "state", "head", "waiting", "client", "lease ends", "last error")
LEASE_COLUMNS = ("client", "lease ends")  # shown only where a head is in flight
CLIENT_COLUMNS = ("client", "address", "since", "last pull", "in flight", "topics")
READY = "ready"  # the state of a key whose head nobody has got yet
IN_FLIGHT = "in flight"
DIFFERENCE_COLUMNS = ("client", "topic", "since", "what")
ERROR_SHOWN = 120
CAUSES = {
    "paused": "an operator has paused the group: `ddmq group resume GROUP`",
    "nobody-consumes": "no client pulls at this proxy, and no other proxy holds a queue",
    "topic-closed": "the topic is not readable (`ddmq topic set TOPIC --readable` opens it)",
    "push-held-back": "the push is held back",
    "other-proxy": "another proxy holds the queues: ask the --admin address of that one",
    "stalled": "clients wait, and nothing was finished for a while",
    "concurrency": "clients hold as many messages as `concurrency` allows",
    "retrying-max": "as many messages wait for their retry as `retrying_max` allows",
    "ack-span-max": "an old message is unfinished, and the later ones have reached `ack_span_max`",
    "rate-max": "the group has reached its `rate_max`",
    "clients-differ": "clients of the group state other filters or topics",
    "slower-than-arrivals": "fewer messages are finished than stored: add consumers, or make them faster",
    "keys-blocked": "the first message of an order key has failed: `ddmq group keys GROUP`",
}  # what each `why` means


def print_group(answer: Mapping[str, Any], *, all_settings: bool) -> None:
    """Print the answer of GET /groups/GROUP for people."""
    for each in answer["subscriptions"]:
        print_line(f"{answer['group']} on {each['topic']}")
        print_facts(_subscription_facts(each, all_settings=all_settings))
        own = {"committed": None, "lag": None} if _is_broadcast(each) else {}
        if each["queues"]:
            print_table("", QUEUE_COLUMNS, (_queue_row(queue | own) for queue in each["queues"]))
        else:
            topic = each["topic"]
            hint(f"topic {topic} does not exist yet: `ddmq topic create {topic}`, or send to it")
    if answer["dead_letters_open"]:
        many = "" if answer["dead_letters_open"] == 1 else "s"
        hint(f"{answer['dead_letters_open']:,} dead letter{many}: `ddmq dlq show {answer['group']}`")
    for each in answer.get("stalled", ()):  # a server of the release before does not tell
        print_alert(stall_text(each))
    if answer["blocked_keys"]:
        if any(each["state"] != READY for each in answer["blocked_keys"]):
            print_line("blocked keys")
        print_keys(answer["group"], answer["blocked_keys"])
        if answer["blocked_keys_more"]:
            hint(f"there are more: `ddmq group keys {answer['group']} --count 1000`")
    if error := answer.get("blocked_keys_error"):
        hint(error)
    if answer["clients"]:
        print_line("clients at this proxy")
        print_table("", CLIENT_COLUMNS, (_client_row(each) for each in answer["clients"]))
        if answer["clients_more"]:
            hint(f"and {answer['clients_more']:,} clients more")
    if answer["differences"]:
        now_ms = time.time() * 1000
        print_line("clients that subscribe differently")
        print_table("", DIFFERENCE_COLUMNS, (_difference_row(each, now_ms) for each in answer["differences"]))
    hint_elsewhere(answer)


def stall_text(each: Mapping[str, Any]) -> str:
    """Describe which queues of one topic stand still, and what blocks them as far as that is known."""
    several = len(each["queues"]) != 1
    queues = f"queue{'s' if several else ''} {', '.join(map(str, each['queues']))} of {each['topic']}"
    text = (
        f"STALLED: {queues} {'have' if several else 'has'} messages, clients wait for them, "
        f"and nothing was finished for {format_age(each['seconds'])}"
    )
    others = ", ".join(each["held_up_by"])
    if others:
        return (
            f"{text}; the order key reaches over the group, and nobody pulls {others}: pull it, or delete "
            "the group's subscription to it where nobody wants it any more"
        )
    return f"{text}; nothing in flight, retrying or parked explains it (docs/alerts.md, DdmqQueuesStalled)"


def hint_no_keys(group: Mapping[str, Any]) -> None:
    """Print what the absence of blocked keys means: the group has no order key, or nothing is late."""
    name = group["group"]
    if not any(each["order_key"] for each in group["subscriptions"]):
        hint(
            f"group {name} has no order key, so no message waits for another one; "
            f"`ddmq group set {name} --topic TOPIC --order-key KEY` sets one"
        )
    else:
        hint(f"`ddmq lag {name}` shows how many messages it has not finished")


def hint_elsewhere(answer: Mapping[str, Any]) -> None:
    """Print which proxy to ask about the queues that this proxy does not own."""
    queues = [queue for each in answer["subscriptions"] for queue in each["queues"]]
    others = sorted({queue["holder"] for queue in queues if queue["holder"] and not queue["held"]})
    if others:
        hint(
            f"some queues are held by another proxy ({', '.join(others)}): for what is in flight, retrying "
            "and blocked there, ask the --admin address of that one"
        )


def _subscription_facts(each: Mapping[str, Any], *, all_settings: bool) -> dict[str, Any]:
    key = each["order_key"]
    rates = {
        "stored": each.get("arriving_per_s"),
        "delivered": each["delivered_per_s"],
        "acknowledged": each["acked_per_s"],
        "finished": each.get("finished_per_s"),
    }
    oldest = each["lag_age_s"]
    lag = cell(each["lag"]) + ("" if oldest is None else f", the oldest waits {format_age(oldest)}")
    apart = each["order_scope"] in ("group", "topic") and not each.get("order_merged", True)
    scope = f"{each['order_scope']}, each queue in its own order" if apart else each["order_scope"]
    facts = {
        "order key": f"{key} over the {scope}" if key else "none, messages are independent",
        "filter": "none" if each["filter"] == "*" else each["filter"],
        "lag": "every instance has a place of its own" if _is_broadcast(each) else lag,
        **_unfinished_facts(each),
        "in flight": each["in_flight"],
        "retrying": each["retrying"],
        "retry path": _retry_path(each),
        "became dead letters": cell(_count_died(each)) + " since this proxy started",
        "ack span": each["ack_span"],
        "waiting pulls": each["waiters"],
        "rates": ", ".join(f"{rate:,.1f}/s {name}" for name, rate in rates.items() if rate is not None)
        or "not known yet",
        "settings from": "ddmq group set" if each["source"] == "log" else each["source"],
    }
    names = each["settings"] if all_settings else each["set_here"]
    for name in names:
        facts |= _setting_facts(name.replace("_", "-"), each["settings"][name], with_defaults=all_settings)
    if each.get("paused"):
        facts["PAUSED"] = (
            f"for {paused_age(each)}: nothing is delivered until "
            f"`ddmq group resume {each['group']} --topic {each['topic']}`"
        )
    if each.get("consumed") is False:
        facts["NOBODY CONSUMES"] = nobody_text(each)
    if each["push_fault"]:
        facts["PUSH HELD BACK"] = each["push_fault"]
    if each["inconsistent"]:
        facts["INCONSISTENT"] = (
            f"{each['inconsistent']:,} times since this proxy started a client stated another filter than "
            "this subscription has"
        )
    return facts


def _unfinished_facts(each: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many messages are unfinished, when none is left, and what holds them up."""
    if not each.get("unfinished"):  # none, or a server of the release before
        return {}
    drains = drain_text(each)
    facts = {"unfinished": each["unfinished"]}
    if drains is not None:
        facts["drains"] = "never at these rates" if drains == "never" else f"in {drains} at these rates"
    if each["why"] is not None:
        facts["why"] = CAUSES.get(each["why"], each["why"])
    return facts


def _count_died(each: Mapping[str, Any]) -> int:
    """Return how many messages became dead letters. Answers of older servers have this number under another
    name."""
    return int(each.get("dead_letters_since_start", each["dead_letters"]))


def _setting_facts(name: str, value: Any, *, with_defaults: bool) -> dict[str, str]:
    """Return a setting as names and values, one for each of its keys. `with_defaults`: also include keys that
    have the program's default."""
    if with_defaults or not isinstance(value, dict):
        return {"  " + name: format_value(value)}
    default = msgspec.json.decode(msgspec.json.encode(BY_NAME[name].default))
    return {"  " + key: after for key, _, after in list_differences(name, default, value)}


def _retry_path(each: Mapping[str, Any]) -> str:
    waiting = retry_path(each)
    if waiting is None:
        return "not known just now"
    if not each["retry_waiting"]:
        return "nothing waits for a later retry"
    due, oldest = each["retry_lag"], format_age(each["retry_oldest_s"])
    soonest = (
        f"{due:,} of them are due now" if due else f"the next is due in {format_age(each['retry_next_s'])}"
    )
    return f"{waiting} failed and not finished, the first since {oldest}; {soonest}"


def _is_broadcast(each: Mapping[str, Any]) -> bool:
    return bool(each["settings"]["model"] == "broadcasting")


def _queue_row(queue: Mapping[str, Any]) -> list[Any]:
    owner = queue["holder"] or ("this proxy" if queue["held"] else None)
    oldest = None if queue["lag_age_s"] is None else format_age(queue["lag_age_s"])
    values = dict(queue) | {"holder": owner, "oldest": oldest}
    return [values[name] for name in QUEUE_COLUMNS]


def print_keys(group: str, keys: Sequence[Mapping[str, Any]]) -> None:
    """Print blocked keys and the commands that help; keys that only wait to be pulled are in a table of their
    own."""
    blocked = [each for each in keys if each["state"] != READY]
    ready = [each for each in keys if each["state"] == READY]
    if blocked:
        _print_key_table(blocked)
    else:
        print_line(f"no key of {group} is blocked at this proxy")
    if ready:
        print_line("not pulled yet, with others of their key behind them")
        _print_key_table(ready)
    if not blocked:
        return
    hint(
        f"`ddmq group replay {group} KEY` delivers the first message of a parked or retrying key now; "
        f"`ddmq group skip {group} KEY` moves it to the dead letters; "
        f"`ddmq group park {group} KEY` holds the key back"
    )
    if any(each["state"] == IN_FLIGHT for each in blocked):
        hint(
            f"`ddmq group replay {group} KEY --take-away` takes a message in flight from a client that hangs"
        )


def _print_key_table(keys: Sequence[Mapping[str, Any]]) -> None:
    now_ms = time.time() * 1000
    rows = [_key_row(each, now_ms) for each in keys]
    flying = any(each["state"] == IN_FLIGHT for each in keys)
    columns = [name for name in KEY_COLUMNS if flying or name not in LEASE_COLUMNS]
    print_table("", columns, ([row[name] for name in columns] for row in rows))


def _key_row(each: Mapping[str, Any], now_ms: float) -> dict[str, Any]:
    more = "+" if each["more"] else ""
    return {
        "key": each["key"],
        "since": format_age((now_ms - each["since_ms"]) / 1000) + " ago" if each["since_ms"] else None,
        "attempts": each["attempts"],
        "state": format_state(each),
        "head": f"{each['topic']}/{each['queue_id']}/{each['offset']}" if each["topic"] else None,
        "waiting": f"{each['waiting']:,}{more}",
        "last error": each["error"][:ERROR_SHOWN] or None,
    } | _lease_cells(each, now_ms)


def _lease_cells(each: Mapping[str, Any], now_ms: float) -> dict[str, Any]:
    """Return the cells for the client that has the head in flight, and for the end of its lease."""
    if not each.get("until_ms"):  # a server of the release before does not tell
        return dict.fromkeys(LEASE_COLUMNS)
    extended = ", extended" if each["extended"] else ""
    ends = f"in {format_age((each['until_ms'] - now_ms) / 1000)}{extended}"
    return {"client": client_text(each), "lease ends": ends}


def format_state(each: Mapping[str, Any]) -> str:
    """Return the state of a key for people; for a parked key also the reason: an operator parked it, or its
    attempts are used up."""
    reason = each.get("reason", "")
    return f"{each['state']} ({reason})" if reason else str(each["state"])


def _client_row(each: Mapping[str, Any]) -> list[Any]:
    return [
        each["client_id"],
        each["address"] + ("" if each.get("connected", True) else " (gone)"),
        format_age(time.time() - each["since_ms"] / 1000) + " ago",
        format_age(each["idle_s"]) + " ago",
        each["in_flight"],
        ", ".join(each["topics"]) or "all",
    ]


def _difference_row(each: Mapping[str, Any], now_ms: float) -> list[Any]:
    since = format_age((now_ms - each["since_ms"]) / 1000) + " ago"
    return [each["client_id"], each["topic"] or None, since, each["what"]]
