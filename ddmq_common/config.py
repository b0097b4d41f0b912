"""YAML files into frozen dataclasses, once, with errors that name file, line, key, value and remedy.

A configuration class is a frozen dataclass whose fields are int, float, bool, str, Path, an enum, a
tuple of those, another such dataclass, a mapping from names to one of them, an `Overlay` of a dataclass,
or `T | None`. A field's metadata may hold `min`, `max`, `choices` (all inclusive) and `secret: True`
(masked in what is logged). Unknown keys are rejected with the nearest known one. Sizes may be written
`64KiB`, `2MiB`, `1GiB` and durations of fields ending in `_ms`, `_s` as plain numbers in that unit.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import yaml

from ddmq_common.errors import ConfigError

T = TypeVar("T")
_SIZE = re.compile(r"(\d+)\s*(KiB|MiB|GiB|TiB)\Z")
SIZE_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

_QUOTED = re.compile(r"(?<=['\"])[^'\"]{2,}(?=['\"])")
_QUERY_VALUE = re.compile(r"([?&][^=&#]*=)[^&#]+")


class ConfigLocation(NamedTuple):
    """The location of a configuration value (file, line, key) for error messages."""

    source: str
    key: str
    line: int | None = None

    def child_location(self, key: str, line: int | None) -> ConfigLocation:
        return ConfigLocation(self.source, f"{self.key}.{key}" if self.key else key, line or self.line)

    def error(self, text: str) -> ConfigError:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return ConfigError(f"{where}: {self.key or 'top level'}: {text}")


class Overlay(Generic[T]):
    """Checked values for some fields of the configuration class T, to be applied to a base that may change
    later.

    Every field of T has a default, and the values must also be valid together with the defaults. `values`:
    field → value. `location`: where they come from, for error messages.
    """

    __slots__ = ("location", "values")

    def __init__(self, values: Mapping[str, Any], location: ConfigLocation | None = None) -> None:
        self.values = dict(values)
        self.location = location or ConfigLocation("settings", "")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Overlay) and other.values == self.values

    __hash__ = None  # type: ignore[assignment]

    def apply_to(self, base: T) -> T:
        """Return `base` with these fields replaced. Raises ConfigError if the result is inconsistent."""
        try:
            return dataclasses.replace(base, **self.values)  # type: ignore[type-var]
        except (ConfigError, ValueError) as error:
            raise self.error(str(error)) from error

    def error(self, text: str) -> ConfigError:
        """Return a ConfigError about these fields as a whole, with their location."""
        location = self.location
        return location.error(text) if location.key else ConfigError(f"{location.source}: {text}")


class LocatedMapping(NamedTuple):
    """A parsed mapping with the line number of each key."""

    values: dict[str, Any]
    lines: dict[str, int]


class SourcedValue(NamedTuple):
    """A value in a parsed mapping that does not come from the file, and its location."""

    value: Any
    location: ConfigLocation


def load(path: Path, cls: type[T]) -> T:
    """Load the file `path` into the dataclass `cls`. An empty file gives all defaults.

    Raises ConfigError.
    """
    return build(cls, read(path), ConfigLocation(str(path), ""))


def read(path: Path) -> Any:
    """Parse a file to a tree whose mappings record line numbers. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    tree = parse_text(text, ConfigLocation(str(path), ""))
    return LocatedMapping({}, {}) if tree is None else tree


def parse_text(text: str, location: ConfigLocation) -> Any:
    """Parse YAML to a tree whose mappings know their lines; None for a blank text. Raises ConfigError."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return None if node is None else _parse_node(node, location)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{location.source}: is not YAML: {_describe_yaml_error(error)}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{location.source}: is not YAML: {' '.join(str(error).split())}") from error


def _describe_yaml_error(error: yaml.MarkedYAMLError) -> str:
    """Describe the error and its position without quoting the file, because it may contain a secret."""
    texts = []
    for text, mark in ((error.context, error.context_mark), (error.problem, error.problem_mark)):
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
        if text:
            texts.append(_QUOTED.sub("…", text) + where)
    return ": ".join(texts)


def _parse_node(node: Any, location: ConfigLocation) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _parse_mapping(node, location)
    if isinstance(node, yaml.SequenceNode):
        return [_parse_node(child, location) for child in node.value]
    return yaml.SafeLoader("").construct_object(node)


def _parse_mapping(node: Any, location: ConfigLocation) -> LocatedMapping:
    located = LocatedMapping({}, {})
    for key_node, value_node in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in located.values:
            first = located.lines[key]
            raise location.child_location(key, line).error(f"stands twice, first at line {first}; keep one")
        located.values[key] = _parse_node(value_node, location.child_location(key, line))
        located.lines[key] = line
    return located


def build(cls: type[T], tree: Any, location: ConfigLocation) -> T:
    """Convert a parsed tree (or a plain dict) to the dataclass `cls` and check every field.

    Raises ConfigError.
    """
    values = _convert_fields(cls, tree, location)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    missing = [field.name for field in fields if field.name not in values and _is_required(field)]
    if missing:
        raise location.error(f"{missing[0]!r} is missing; it has no default")
    try:
        return cls(**values)
    except (ConfigError, ValueError) as error:  # a __post_init__ that checks fields against each other
        raise location.error(str(error) + name_sources(tree, str(error))) from error


def name_sources(tree: Any, text: str) -> str:
    """Return, for the end of an error text, the sources of values that it names and that no file contains."""
    sources = dict.fromkeys(
        value.location.source
        for key, value in _sourced_values(tree)
        if re.search(rf"\b{re.escape(key)}\b", text)
    )
    return f"; set by {', '.join(sources)}" if sources else ""


def _sourced_values(tree: Any) -> Iterator[tuple[str, SourcedValue]]:
    if isinstance(tree, LocatedMapping):
        for key, value in tree.values.items():
            if isinstance(value, SourcedValue):
                yield key, value
            else:
                yield from _sourced_values(value)


def build_overlay(cls: type[T], tree: Any, location: ConfigLocation) -> Overlay[T]:
    """Check values for some fields of `cls`, and return them as an Overlay. Raises ConfigError."""
    return Overlay(_convert_fields(cls, tree, location), location)


def _convert_fields(cls: type[Any], tree: Any, location: ConfigLocation) -> dict[str, Any]:
    """Convert and check the fields that the tree contains."""
    if isinstance(tree, Mapping):
        tree = LocatedMapping(dict(tree), {})
    if not isinstance(tree, LocatedMapping):
        actual = repr(tree) if isinstance(tree, int | float | None) else "text or a list"
        raise location.error(f"is {actual}; a mapping with the keys of {cls.__name__} is wanted")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    for key, raw in tree.values.items():
        here = location.child_location(key, tree.lines.get(key))
        if isinstance(raw, SourcedValue):
            raw, here = raw
        if key not in fields:
            raise here.error(f"unknown key{_suggest_key(key, fields)}")
        rules = fields[key].metadata
        if rules.get("secret") and not isinstance(raw, str | LocatedMapping):
            raise here.error("is no text, which is wanted; put what looks like a number in quotes")
        if rules.get("urls") and not isinstance(raw, list | tuple):
            raise here.error("is no list, which is wanted")
        values[key] = _convert_value(raw, hints[key], here)
        _check(values[key], fields[key].metadata, here)
    return values


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _suggest_key(key: str, allowed: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, allowed, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are: {', '.join(sorted(allowed))}"


def _convert_value(raw: Any, hint: Any, location: ConfigLocation) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if raw is None:
            return None
        return _convert_value(raw, next(arg for arg in args if arg is not type(None)), location)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type[Any], hint), raw, location)
    if origin is Overlay:
        overlaid = build_overlay(args[0], raw, location)
        overlaid.apply_to(args[0]())
        return overlaid
    if origin is tuple:
        return _convert_sequence(raw, args[0], location)
    if origin in (dict, Mapping):
        return _convert_table(raw, args[1], location)
    return _convert_scalar(raw, hint, location)


def _convert_sequence(raw: Any, hint: Any, location: ConfigLocation) -> tuple[Any, ...]:
    if not isinstance(raw, list | tuple):
        raise location.error(f"is {_value_text(raw)}; a list is wanted")
    return tuple(
        _convert_value(item, hint, location.child_location(str(index), None))
        for index, item in enumerate(raw)
    )


def _convert_table(raw: Any, hint: Any, location: ConfigLocation) -> dict[str, Any]:
    if isinstance(raw, Mapping):
        raw = LocatedMapping(dict(raw), {})
    if not isinstance(raw, LocatedMapping):
        raise location.error(f"is {_value_text(raw)}; a mapping is wanted")
    return {
        key: _convert_value(item, hint, location.child_location(key, raw.lines.get(key)))
        for key, item in raw.values.items()
    }


def _convert_scalar(raw: Any, hint: Any, location: ConfigLocation) -> Any:
    if isinstance(raw, str) and hint in (int, float) and (size := _SIZE.match(raw)):
        return int(size[1]) * SIZE_UNITS[size[2]]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _convert_enum(raw, hint, location)
    if hint is Path and isinstance(raw, str):
        if not raw.strip():  # often an unset shell variable; Path("") would be the current directory
            raise location.error(f"is {raw!r}; a path is wanted, . for the current directory")
        return Path(raw)
    if hint is float and isinstance(raw, int) and not isinstance(raw, bool):
        return float(raw)
    if hint is Any or (isinstance(raw, hint) and not (hint is not bool and isinstance(raw, bool))):
        return raw
    kinds = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    raise location.error(f"is {_value_text(raw)}; {kinds.get(hint, str(hint))} is wanted")


def _convert_enum(raw: Any, hint: type[enum.Enum], location: ConfigLocation) -> enum.Enum:
    by_name = {member.name.lower(): member for member in hint}
    text = (
        ("on" if raw else "off") if isinstance(raw, bool) else str(raw).lower()
    )  # as YAML reads these words
    member_value = None if raw is None else by_name.get(text)
    if member_value is None:
        raise location.error(f"is {_value_text(raw)}; allowed: {', '.join(by_name)}")
    return member_value


def _check(value: Any, rules: Mapping[str, Any], location: ConfigLocation) -> None:
    if value is None:
        return
    low, high, choices = rules.get("min"), rules.get("max"), rules.get("choices")
    for item in value if isinstance(value, tuple) else (value,):
        if (low is not None and item < low) or (high is not None and item > high):
            raise location.error(f"is {item!r}; allowed: {_range_text(low, high)}")
        if choices is not None and item not in choices:
            raise location.error(f"is {item!r}; allowed: {', '.join(map(str, choices))}")


def _range_text(low: Any, high: Any) -> str:
    if high is None:
        return f"{low} or more"
    return f"at most {high}" if low is None else f"{low} to {high}"


def _value_text(raw: Any) -> str:
    if isinstance(raw, LocatedMapping):
        return "a mapping"
    return (
        "a list"
        if isinstance(raw, list) and any(isinstance(each, LocatedMapping) for each in raw)
        else repr(raw)
    )


def resolved(config: Any) -> dict[str, Any]:
    """Return all values of a configuration as a plain tree for the log, with secrets masked."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata.get("secret"):
            value = "***" if value else value
        elif field.metadata.get("urls"):
            value = tuple(_without_values(url) for url in value)
        elif dataclasses.is_dataclass(value):
            value = value.shown() if hasattr(value, "shown") else resolved(value)  # it masks by itself
        values[field.name] = value
    return values


def _without_values(url: str) -> str:
    """Return the URL with `***` in place of all values in its query, because they may be secrets."""
    return _QUERY_VALUE.sub(r"\1***", url)


def mask_tree(tree: Any, config: Any) -> Any:
    """Return a plain tree of settings with secrets masked: the values of all keys, at any depth, that name a
    secret field of `config`, and those of queries in its URLs."""
    return _mask_values(tree, set(_list_fields(config, "secret")), set(_list_fields(config, "urls")))


def _list_fields(config: Any, rule: str) -> Iterator[str]:
    """Yield the names of the fields with a rule, also of nested configurations."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata.get(rule):
            yield field.name
        elif dataclasses.is_dataclass(value):
            yield from _list_fields(value, rule)


def _mask_values(tree: Any, secrets: set[str], urls: set[str], name: str = "") -> Any:
    if name in secrets:
        return "***" if tree else tree
    if isinstance(tree, Mapping):
        return {
            key: _mask_values(value, secrets, urls, str(key).rpartition(".")[2])
            for key, value in tree.items()
        }
    if isinstance(tree, list | tuple):
        return [_mask_values(each, secrets, urls, name) for each in tree]
    return _without_values(tree) if name in urls and isinstance(tree, str) else tree


def rules(
    *, low: Any = None, high: Any = None, choices: Any = None, secret: bool = False, urls: bool = False
) -> dict[str, Any]:
    """Return the metadata of a dataclass field: `field(default=3, metadata=rules(low=1, high=64))`.

    `secret`: the value is logged as `***`. `urls`: a tuple of URLs, logged without the values in their
    queries.
    """
    return {"min": low, "max": high, "choices": choices, "secret": secret, "urls": urls}


class Reloaded(NamedTuple):
    """The result of a reload.

    `config` is in force now; `changed` keys took effect, `waiting` ones need a restart.
    """

    config: Any
    changed: tuple[str, ...]
    waiting: tuple[str, ...]


def merge_live_values(current: Any, fresh: Any, live: frozenset[str]) -> Reloaded:
    """Return `current` with the values of `fresh` (of the same dataclass) for the keys in `live`."""
    differing_keys = [
        field.name
        for field in dataclasses.fields(current)
        if getattr(current, field.name) != getattr(fresh, field.name)
    ]
    changed = tuple(name for name in differing_keys if name in live)
    values = {name: getattr(fresh, name) for name in changed}
    return Reloaded(
        dataclasses.replace(current, **values),
        changed,
        tuple(name for name in differing_keys if name not in live),
    )
