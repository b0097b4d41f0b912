"""The keys of the configuration files, and the environment variables that set them.

A key is written FILE.KEY, as in `proxy_consumer.defaults.tags`. Its variable has capitals, and `__` for each
dot: DDMQ_PROXY_CONSUMER__DEFAULTS__TAGS. Keys of ddmq.yaml need no file in the name: `ddmq.data_dir` is
DDMQ__DATA_DIR. The value is what the file would contain: plain text where the key is text or a path, else
YAML, also for lists and maps.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ddmq_common.config import ConfigLocation, LocatedMapping, SourcedValue, parse_text
from ddmq_common.errors import ConfigError

PREFIX = "DDMQ_"
SEPARATOR = "__"
VARIABLE = "variable "  # before its name, where the source of a value is stated
# Variables of the same prefix that are no settings of a server: those of the commands, of compiled modules,
# of benchmarks and of the test suite.
OTHERS = frozenset(
    ("DDMQ_PRODUCER", "DDMQ_CONSUMER", "DDMQ_ADMIN", "DDMQ_CA", "DDMQ_CERT", "DDMQ_KEY", "DDMQ_TOKEN",
     "DDMQ_TOKEN_FILE", "DDMQ_PROFILE", "DDMQ_COMPILED", "DDMQ_KAFKA", "DDMQ_KILLS", "DDMQ_MODEL_SCALE",
     "DDMQ_OTELCOL", "DDMQ_PROPERTY_EXAMPLES")
)  # fmt: skip
OTHER_PREFIXES = ("DDMQ_BENCH_",)
# With these, Kubernetes describes a Service called ddmq, or ddmq-…, to the containers of its namespace.
_SERVICE_LINK = re.compile(
    r"DDMQ_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)\w*)?)\Z"
)


class SettingKey(NamedTuple):
    """A configuration key: its full name FILE.KEY, and the name of its environment variable. `section`: the
    name of its file in `ddmq.server.config.FILES`. `path`: the key within the file. `hint`: its type."""

    name: str
    variable: str
    section: str
    path: tuple[str, ...]
    hint: Any


def list_keys(files: Mapping[str, tuple[str, type[Any]]]) -> list[SettingKey]:
    """Return all keys of the files, in order. A mapping whose names are chosen by users is a single key."""
    return [
        _build_key(section, file.removesuffix(".yaml"), path, hint)
        for section, (file, kind) in files.items()
        for path, hint in _walk_fields(kind)
    ]


def _build_key(section: str, stem: str, path: tuple[str, ...], hint: Any) -> SettingKey:
    first = "DDMQ" if stem == "ddmq" else PREFIX + stem.upper()
    variable = SEPARATOR.join((first, *map(str.upper, path)))
    return SettingKey(".".join((stem, *path)), variable, section, path, hint)


def _walk_fields(kind: type[Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from (
                ((field.name, *path), inner) for path, inner in _walk_fields(typing.cast(type[Any], hint))
            )
        else:
            yield (field.name,), hint


def find_variables(environment: Mapping[str, str], keys: Iterable[SettingKey]) -> dict[SettingKey, str]:
    """Return the text of each key that a variable of the environment sets. Raises ConfigError for an unknown
    variable."""
    by_variable = {key.variable: key for key in keys}
    texts = {}
    for name in sorted(environment):
        if name in by_variable:
            texts[by_variable[name]] = environment[name]
        elif _is_meant_as_setting(name):
            raise ConfigError(f"{VARIABLE}{name}: unknown{_suggest_variable(name, by_variable)}")
    return texts


def _is_meant_as_setting(name: str) -> bool:
    return (
        name.startswith(PREFIX)
        and name not in OTHERS
        and not name.startswith(OTHER_PREFIXES)
        and not _SERVICE_LINK.match(name)
    )


def _suggest_variable(name: str, variables: Mapping[str, SettingKey]) -> str:
    by_words = {_join_words(variable): variable for variable in variables}
    near = difflib.get_close_matches(_join_words(name), by_words, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {by_words[near[0]]}?"
    return "; DDMQ_ is for settings, whose names docs/configuration.md explains"


def _join_words(variable: str) -> str:
    """Return the name of a variable without the prefix that all of them have, and with one `_` between two
    words."""
    return re.sub("_+", "_", variable.removeprefix("DDMQ"))


def override_key(tree: Any, key: SettingKey, text: str) -> None:
    """Set the key in the tree of its file to the value of a variable, replacing the file's own value."""
    location = ConfigLocation(f"{VARIABLE}{key.variable}", key.name)
    *parents, last = key.path
    for name in parents:
        tree = (
            tree.values.setdefault(name, LocatedMapping({}, {})) if isinstance(tree, LocatedMapping) else None
        )
    if isinstance(tree, LocatedMapping):  # else the file is wrong there, which the loader reports
        tree.values[last] = SourcedValue(_parse_value(text, key.hint, location), location)


def _parse_value(text: str, hint: Any, location: ConfigLocation) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if str not in kinds and Path not in kinds:
        return parse_text(text, location)
    return None if type(None) in kinds and text in ("", "null") else text


def is_variable(source: str) -> bool:
    """Return whether this source of a value is a variable of the environment."""
    return source.startswith(VARIABLE)


def find_source(tree: Any, key: SettingKey, path: Path) -> str | None:
    """Return where a value is set: by a variable, or on a line of the file at `path`. None if it is set
    nowhere."""
    line = None
    for name in key.path:
        if not isinstance(tree, LocatedMapping) or name not in tree.values:
            return None
        line, tree = tree.lines.get(name), tree.values[name]
    return tree.location.source if isinstance(tree, SourcedValue) else f"{path}:{line}"
