"""Old names of options and commands: they work for one release, are in no help, and name the new one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import click

from ddmq.cli.options import combine_options
from ddmq.cli.output import hint
from ddmq.cli.values import Integer


class OldOption(click.Option):
    """A hidden option with an old name. It sets the option with the new name, and prints a hint about that on
    standard error."""

    def __init__(
        self, declarations: list[str], *, now: str, parameter: str | None = None, **settings: Any
    ) -> None:
        """Declare an old name of an option.

        `now`: the new name. `parameter`: the parameter of the command, if its name differs from that.
        """
        super().__init__(declarations, hidden=True, expose_value=False, is_eager=True, **settings)
        self._now = now
        self._parameter = parameter or now.removeprefix("--")

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        assert self.name is not None
        if self.name in opts and isinstance(opts, dict):
            opts.setdefault(self._parameter, opts.pop(self.name))
            _hint_renamed(self.opts[0], self._now)
        return None, args


def count_option(
    text: str = "Show so many at most.", *, default: int = 20, old_name: str = "--limit"
) -> Callable[[Any], Any]:
    """Return a decorator with the option --count of a listing, and the hidden option `old_name` for the
    same."""
    return combine_options(
        click.option("--count", default=default, show_default=True, type=Integer(1, 1000), help=text),
        click.option(old_name, f"old_{old_name.removeprefix('--')}", cls=OldOption, now="--count"),
    )


def add_old_name(group: click.Group, old_name: str, command: click.Command) -> None:
    """Make a command of the group also available under its old name, hidden from help."""
    old = copy.copy(command)
    old.name, old.hidden = old_name, True
    callback, path = command.callback, f"ddmq {group.name}"
    assert callback is not None

    def run_renamed(*arguments: Any, **options: Any) -> Any:
        _hint_renamed(f"{path} {old_name}", f"{path} {command.name}")
        return callback(*arguments, **options)

    old.callback = run_renamed
    group.add_command(old)


def _hint_renamed(old: str, new: str) -> None:
    hint(f"note: {old} is called {new} now; the old name will go with the next release")
