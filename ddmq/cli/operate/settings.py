"""Command-line options for every setting of a subscription, made from the one table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from ddmq.cli.moments import parse_start
from ddmq.settings import BY_NAME, TABLE, Setting

_SIZE = re.compile(r"\d+\s*[KMGT]iB\Z")
_NUMBER = re.compile(r"-?\d{1,18}\Z")


class Value(click.ParamType[Any]):
    """A number, a list or an object as the server wants it; whether it is allowed says the server."""

    def __init__(self, setting: Setting) -> None:
        self.name = setting.metavar
        self._setting = setting

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        text = value.strip()
        kind = self._setting.kind
        if kind == "object":
            return self._object(text, param, ctx)
        if kind in ("numbers", "words"):
            inner = text.removeprefix("[").removesuffix("]").strip()
            parts = [part.strip() for part in inner.split(",")] if inner else []
            return parts if kind == "words" else [self._number(part, param, ctx) for part in parts]
        if _SIZE.match(text):
            return text
        return self._number(text, param, ctx)

    def _number(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if not _NUMBER.match(text):
            self.fail(f"{text!r} is not a whole number; allowed: {self._setting.allowed}", param, ctx)
        return int(text)

    def _object(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            found = json.loads(text)
        except ValueError as error:
            self.fail(f"{text[:60]!r} is not JSON: {error}", param, ctx)
        if not isinstance(found, dict):
            self.fail(f"{text[:60]!r} is not a JSON object", param, ctx)
        return found


def settings_options(command: Any) -> Any:
    """Adds an option for each setting; what is not given is None."""
    for setting in reversed(TABLE):
        command = _option(setting)(command)
    return command


def _option(setting: Setting) -> Callable[[Any], Any]:
    if setting.kind == "flag":
        name = setting.option.removeprefix("--")
        return click.option(f"--{name}/--no-{name}", setting.name, default=None, help=setting.help)
    kind: Any = str
    if setting.choices:
        kind = click.Choice(setting.choices)
    elif setting.kind != "text":
        kind = Value(setting)
    return click.option(setting.option, setting.name, type=kind, metavar=setting.metavar, help=setting.help)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that were named, as the admin API takes them."""
    found = {name: value for name, value in options.items() if name in BY_NAME and value is not None}
    if "start" in found:
        found["start"] = parse_start(found["start"])
    return found


def setting_name(text: str) -> str:
    """A key as it may be written: with dashes, underscores, or as the option."""
    return text.removeprefix("--").replace("-", "_")
