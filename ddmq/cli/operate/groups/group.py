"""`ddmq group …`: consumer groups: what they are set to, where they stand, what holds them up."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.old_names import count_option
from ddmq.cli.operate.groups import group_show, key_actions
from ddmq.cli.operate.groups.pause import pause_group, resume_group, with_paused_column
from ddmq.cli.operate.searches import list_retries
from ddmq.cli.operate.stats import retry_path
from ddmq.cli.options import combine_options
from ddmq.cli.output import confirm, hint, print_json, print_line, print_notes, print_table
from ddmq.cli.values import GROUP, TOPIC, parse_start
from ddmq.settings import BY_NAME, TABLE, Setting, list_differences
from ddmq_client.application.order_keys import unambiguous_order_keys
from ddmq_common.names import is_internal
from proxy_consumer.groups.changes import PAUSED

_SIZE = re.compile(r"\d+\s*[KMGT]iB\Z")
_NUMBER = re.compile(r"-?\d{1,18}\Z")
GROUP_COLUMNS = (
    "group", "topic", "lag", "clients", "in_flight", "retrying", "later", "dead", "ack_span", "waiters",
    "order_key",
)  # fmt: skip
GROUP_SPARE = (
    "waiters",
    "ack_span",
    "order_key",
    "later",
    "retrying",
)  # left out in this order where it is narrow


class Value(click.ParamType[Any]):
    """The click type of a setting that is a number, a list or an object; the server checks its bounds."""

    def __init__(self, setting: Setting) -> None:
        self.name = setting.metavar
        self._setting = setting

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        text = value.strip()
        kind = self._setting.kind
        if kind == "object":
            return self._parse_object(text, param, ctx)
        if kind in ("numbers", "words"):
            inner = text.removeprefix("[").removesuffix("]").strip()
            items = [item.strip() for item in inner.split(",")] if inner else []
            return items if kind == "words" else [self._parse_number(item, param, ctx) for item in items]
        if _SIZE.match(text):
            return text
        return self._parse_number(text, param, ctx)

    def _parse_number(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if not _NUMBER.match(text):
            self.fail(f"{text!r} is not a whole number; allowed: {self._setting.allowed}", param, ctx)
        return int(text)

    def _parse_object(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            value = json.loads(text)
        except ValueError as error:
            self.fail(f"{text[:60]!r} is not JSON: {error}", param, ctx)
        if not isinstance(value, dict):
            self.fail(f"{text[:60]!r} is not a JSON object", param, ctx)
        return value


class OrderKey(click.ParamType[str]):
    """The click type of an order key. KEY or QID in another case is rejected: it is a path, and looks like
    the key."""

    name = "order_key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if allowed := unambiguous_order_keys(value):
            self.fail(f"{value!r} is ambiguous; {allowed}", param, ctx)
        return str(value)


def _setting_option(setting: Setting) -> Callable[[Any], Any]:
    if setting.kind == "flag":
        name = setting.option.removeprefix("--")
        return click.option(f"--{name}/--no-{name}", setting.name, default=None, help=setting.help)
    kind: Any = str
    if setting.choices:
        kind = click.Choice(setting.choices)
    elif setting.name == "order_key":
        kind = OrderKey()
    elif setting.kind != "text":
        kind = Value(setting)
    return click.option(setting.option, setting.name, type=kind, metavar=setting.metavar, help=setting.help)


paused_option = click.option(
    "--paused/--no-paused",
    default=None,
    help="Deliver nothing until --no-paused, as `ddmq group pause` does; also of what groups.yaml declares.",
)
settings_options = combine_options(*map(_setting_option, TABLE), paused_option)  # what is not given is None


def select_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that were given, as the admin API accepts them."""
    names = (*BY_NAME, PAUSED)
    settings = {name: value for name, value in options.items() if name in names and value is not None}
    if "start" in settings:
        settings["start"] = parse_start(settings["start"])
    return settings


def setting_name(text: str) -> str:
    """Return the name of a setting that is written with dashes, underscores, or as an option."""
    return text.removeprefix("--").replace("-", "_")


@click.group()
def group() -> None:
    """Consumer groups: list, show, create, set, pause, resume, delete; blocked keys: keys, park, skip,
    replay.

    A group consumes one or more topics; its subscription to each topic has settings of its own.

    \b
    Examples:
      ddmq group create billing --topic orders --start first
      ddmq group set billing --topic orders --order-key KEY
      ddmq group show billing
      ddmq group keys billing
    """


@group.command("list", short_help="Every group's subscriptions with their lag.")
@admin_options
def list_groups(admin: AdminClient, as_json: bool) -> None:
    """List every group's subscriptions with their lag and their clients.

    "clients": consumers that are connected to this proxy and pull the topic. "retrying" messages wait for a
    quick retry, "later" ones for a retry 10 s to 2 h apart; "dead": open dead letters; "waiters": pulls that
    wait for messages.
    """
    if as_json:
        return print_json(admin.get("groups"))
    rows = admin.list_items("groups")
    if rows:
        columns, cells = with_paused_column(GROUP_COLUMNS, [group_cells(each) for each in rows], rows)
        print_table("", columns, cells, GROUP_SPARE)
    else:
        hint("no groups yet: `ddmq group create NAME --topic TOPIC`, or `ddmq pull TOPIC --group NAME`")
    return None


def group_cells(each: Mapping[str, Any]) -> list[Any]:
    """Return a row of /groups as cells of a table."""
    values = dict(each) | {"later": retry_path(each), "dead": each["dead_letters_open"]}
    return [values.get(name) for name in GROUP_COLUMNS]  # a server of the release before states no clients


@group.command("show", short_help="One group in full, with its clients and blocked keys.")
@click.argument("name", type=GROUP, metavar="GROUP")
@count_option("Show so many blocked keys at most.", old_name="--keys")
@click.option(
    "--settings", is_flag=True, help="Show every setting in force, not only those that the group sets."
)
@admin_options
def show_group(name: str, count: int, settings: bool, admin: AdminClient, as_json: bool) -> None:
    """Show GROUP in full: lag, messages in flight, settings, clients, and blocked keys with the reason."""
    answer = admin.get("groups", name, keys=count)
    if as_json:
        return print_json(answer)
    group_show.print_group(answer, all_settings=settings)
    return None


@group.command("create", short_help="Create a group, or add subscriptions.")
@click.argument("name", type=GROUP, metavar="GROUP")
@click.option(
    "--topic",
    "topics",
    type=TOPIC,
    multiple=True,
    required=True,
    help="Topic to subscribe to; may be repeated.",
)
@settings_options
@admin_options
def create(name: str, topics: tuple[str, ...], admin: AdminClient, as_json: bool, **named: Any) -> None:
    """Create GROUP with a subscription to each --topic, or add these subscriptions to it.

    A subscription that exists is not changed; `ddmq group set` changes it.

    \b
    Examples:
      ddmq group create billing --topic orders --start first
      ddmq group create mailer --topic orders --tags 'new || paid'
    """
    named["start"] = parse_start(named["start"] or "last")
    settings = select_settings(named)
    answer = admin.post("groups", name, body={"topics": list(topics)} | settings)
    _hint_missing(admin, topics)
    print_notes(answer)
    if as_json:
        return print_json(answer)
    if answer["subscribed"]:
        print_line(f"{name} consumes {', '.join(answer['subscribed'])}, from {settings['start']}")
    for topic in sorted(set(topics) - set(answer["subscribed"])):
        print_line(f"{name} consumes {topic} already, nothing is changed")
        hint(f"`ddmq group set {name} --topic {topic}` changes it, `ddmq offset reset` moves it")
    return None


@group.command("set", short_help="Create or change a subscription: order, filter, …")
@click.argument("name", type=GROUP, metavar="GROUP")
@click.option(
    "--topic", type=TOPIC, required=True, help="The topic whose subscription is created or changed."
)
@settings_options
@click.option(
    "--unset",
    multiple=True,
    metavar="KEY",
    help="Return a setting to the default of proxy_consumer.yaml; may be repeated.",
)
@admin_options
def set_(
    name: str, topic: str, unset: tuple[str, ...], admin: AdminClient, as_json: bool, **named: Any
) -> None:
    """Change the given settings of GROUP's subscription to a topic, at once and at every proxy; create it if
    there is none.

    Clients stay connected, and offsets do not move. A subscription that groups.yaml declares can only be
    changed there. The defaults below are the program's; proxy_consumer.yaml may set others.

    \b
    Examples:
      ddmq group set billing --topic orders --order-key '$.customer.id'
      ddmq group set billing --topic orders --unset order-key
    """
    settings = select_settings(named)
    body = settings | {"unset": [setting_name(key) for key in unset]}
    answer = admin.post("groups", name, "topics", topic, body=body)
    _hint_missing(admin, (topic,))
    print_notes(answer)
    if as_json:
        return print_json(answer)
    if answer["created"]:
        print_line(f"{name} consumes {topic}, from {answer['settings']['start']}")
    for change in answer["changed"]:
        for option, before, after in list_differences(
            change["key"].replace("_", "-"), change["before"], change["after"]
        ):
            print_line(f"{option}: {before} → {after}")
    if not answer["created"] and not answer["changed"]:
        print_line(f"nothing changes: {name} on {topic} has these settings already")
    return None


def _hint_missing(client: AdminClient, topics: tuple[str, ...]) -> None:
    internal = int(any(map(is_internal, topics)))  # topics of the system are for administrators alone
    existing = {row["topic"] for row in client.get("topics", internal=internal)}
    for missing in sorted(set(topics) - existing):
        hint(f"note: topic {missing!r} does not exist yet; the group consumes it once it does")


@group.command("delete", short_help="Delete a group, or one subscription.")
@click.argument("name", type=GROUP, metavar="GROUP")
@click.option("--topic", type=TOPIC, help="Only the subscription to this topic.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_options
def delete(name: str, topic: str | None, yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Delete GROUP, or its subscription to one topic, with its offsets. The messages stay in the topic."""
    what = f"group {name}" if topic is None else f"the subscription of {name} to {topic}"
    if not yes:
        confirm(f"Delete {what} and forget where it stands?")
    admin.delete("groups", name, topic=topic)
    if as_json:
        print_json({"group": name, "topic": topic, "deleted": True})
    else:
        print_line(f"deleted {name if topic is None else what}")


# --- blocked keys


@group.command("keys", short_help="Blocked keys: since when, and why.")
@click.argument("name", type=GROUP, metavar="GROUP")
@count_option()
@admin_options
def list_keys(name: str, count: int, admin: AdminClient, as_json: bool) -> None:
    """List the order keys of GROUP whose first message is not finished, so that their later messages wait.

    "head": that message (topic/queue/offset); "waiting": how many messages are known to wait behind it.
    `ddmq group replay` delivers the head again now, `skip` moves it to the dead letters, `park` holds the key
    back.
    """
    rows = admin.get("groups", name, "keys", limit=count)
    if as_json:
        return print_json(rows)
    group_show.print_keys(name, rows)
    group = admin.get("groups", name)
    if not rows:
        group_show.hint_no_keys(group)
    group_show.hint_elsewhere(group)
    return None


_COMMANDS = (
    pause_group, resume_group, key_actions.park, key_actions.skip, key_actions.replay, list_retries,
)  # fmt: skip
for _command in _COMMANDS:
    group.add_command(_command)
