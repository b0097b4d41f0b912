"""Values on the command line: what is wrong with one is said with the value and what is allowed."""

from __future__ import annotations

import json
import math
import os
import shlex
import socket
import time
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from ddmq.address import HostPort
from ddmq.cli.output import reason
from ddmq.moments import ALLOWED, read_moment

KEYS_MAX = 1_000  # of one group, looked at for completion


class Name(click.ParamType[str]):
    """The click type of a topic, a group or a key: any text that is not empty. Empty text usually comes from
    an unset shell variable."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            self.fail("'' is empty; allowed: 1 character or more", param, ctx)
        return str(value)


class ExistingName(Name):
    """The click type of a name that exists on the server, so that the shell can complete it."""

    def __init__(self, kind: str) -> None:
        self.name = self._kind = kind

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names = {row[self._kind] for row in _fetch_rows(ctx, self._kind + "s")}
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def blocked_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an order key with the keys that the server lists for the GROUP before it, without quotes.

    Keys may contain any text, so those that the shell or the command would misread are left out.
    """
    rows = _fetch_rows(ctx, "groups", ctx.params.get("name") or "", "keys", limit=KEYS_MAX)
    keys = {_unquote_key(row["key"]) for row in rows}
    return [
        CompletionItem(key)
        for key in sorted(keys)
        if key.startswith(incomplete) and not key.startswith("-") and shlex.quote(key) == key
    ]


def _unquote_key(key: str) -> str:
    """Return the text of a JSON string without its quotes, as `ddmq group park` accepts it."""
    try:
        value = json.loads(key)
    except ValueError:
        return key
    return value if isinstance(value, str) else key


def _fetch_rows(ctx: click.Context, *path: str, **query: Any) -> list[dict[str, Any]]:
    """Fetch a listing from the server; empty if it does not answer within a second."""
    from ddmq.cli.admin_client import AdminClient, admin_address

    admin = ctx.params.get("admin")
    client = AdminClient(admin.address if admin else admin_address(), timeout_s=1.0)
    try:
        rows: list[dict[str, Any]] = client.get(*path, **query)
    except click.ClickException:
        return []
    return rows


class Integer(click.IntRange):
    """The click type of a whole number within bounds."""

    name = "n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number in the range {self._describe_range()}", param, ctx)
        return super().convert(value, param, ctx)


class Number(click.FloatRange):
    """The click type of a number within bounds; NaN is rejected."""

    name = "n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            is_number = not math.isnan(float(value))
        except ValueError:
            is_number = False
        if not is_number:
            self.fail(f"{value!r} is not a number in the range {self._describe_range()}", param, ctx)
        return super().convert(value, param, ctx)


class _NamedPath(click.Path):
    """The click type of a path. An empty or blank one is rejected: it does not mean the current directory."""

    path_kind: str
    allowed: str

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.name = self.path_kind

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if isinstance(value, str) and not value.strip():
            self.fail(f"{value!r} is empty; allowed: {self.allowed}", param, ctx)
        return super().convert(value, param, ctx)


class Folder(_NamedPath):
    """The click type of a directory."""

    path_kind, allowed = "directory", "a directory, . for this one"


class OutputFile(_NamedPath):
    """The click type of a file that the command writes."""

    path_kind, allowed = "file", "the name of a file"

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)


def check_host(address: HostPort, option: str) -> str:
    """Return the address as text. Raises ClickException if the name of its host does not resolve."""
    try:
        socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise click.ClickException(
            f"{option} {address}: the host {address.host!r} is not known ({reason(error)})"
        ) from error
    return str(address)


NAME = Name()
FOLDER = Folder(path_type=Path, file_okay=False)
TOPIC, GROUP = ExistingName("topic"), ExistingName("group")


def parse_moment(text: str, option: str, others: str = "") -> int:
    """Parse the value of `option` to epoch milliseconds. Raises UsageError; its text lists `others`, then the
    allowed forms."""
    try:
        return read_moment(text, int(time.time() * 1000), local=True)
    except ValueError as error:
        raise click.UsageError(f"{option} {text!r}: allowed: {others}{ALLOWED}") from error


def parse_start(text: str, option: str = "--start") -> str:
    """Return `first`, `last`, or a time as epoch milliseconds in text."""
    return text if text in ("first", "last") else str(parse_moment(text, option, "first, last, "))
