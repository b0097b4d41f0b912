"""Values on the command line: what is wrong with one is said with the value and what is allowed."""

from __future__ import annotations

import math
import os
import socket
from typing import Any

import click
from click.shell_completion import CompletionItem

from ddmq.address import HostPort
from ddmq.cli.output import reason


class Name(click.ParamType[str]):
    """A topic, a group, a key: any text but none, as an unset variable of a shell leaves it."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            self.fail("'' is empty; allowed: 1 character or more", param, ctx)
        return str(value)


class KnownName(Name):
    """A name that may be one of those the server knows: the shell completes it."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from ddmq.cli.admin_client import AdminClient, admin_address

        client = AdminClient(ctx.params.get("admin") or admin_address(), timeout_s=1.0)
        try:
            names = {row[self._kind] for row in client.get(self._kind + "s")}
        except click.ClickException:
            return []
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


class Whole(click.IntRange):
    """A whole number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number in the range {self._describe_range()}", param, ctx)
        return super().convert(value, param, ctx)


class Number(click.FloatRange):
    """A number within bounds, which NaN is in none of."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            known = not math.isnan(float(value))
        except ValueError:
            known = False
        if not known:
            self.fail(f"{value!r} is not a number in the range {self._describe_range()}", param, ctx)
        return super().convert(value, param, ctx)


class Folder(click.Path):
    """A directory; an empty name is none, and not the one that the command runs in."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if value == "":
            self.fail("'' is empty; allowed: a directory, . for this one", param, ctx)
        return super().convert(value, param, ctx)


def known_host(address: HostPort, option: str) -> str:
    """The address as text. Raises ClickException for a host whose name does not resolve."""
    try:
        socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise click.ClickException(
            f"{option} {address}: the host {address.host!r} is not known ({reason(error)})"
        ) from error
    return str(address)


NAME = Name()
TOPIC, GROUP = KnownName("topic"), KnownName("group")
