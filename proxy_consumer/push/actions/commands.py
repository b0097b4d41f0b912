"""The commands of the Redis sink: templates that are checked once and filled in per message.

DEL, SET [NX|XX] [EX|PX n], MSET, HSET, HMSET and HDEL. An argument that begins with `$` is a path into the
JSON; in any other, `{key}`, `{tag}`, `{topic}`, `{body}` and `{$.path}` are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from proxy_consumer.order_keys.canonical import TooMuchWork
from proxy_consumer.push.actions.config import RedisConfig
from proxy_consumer.push.actions.job import ABSENT, ActionJob, plain, readable
from proxy_consumer.push.actions.paths import compile_path
from proxy_consumer.push.actions.targets import parse_address

_HOLE = re.compile(r"\{([^{}]+)\}")
_SHAPES = {
    "DEL": "key …",
    "SET": "key value [NX|XX] [EX|PX number]",
    "MSET": "key value …",
    "HSET": "key field value …",
    "HMSET": "key field value …",
    "HDEL": "key field …",
}
Filler = Callable[[ActionJob], bytes]


class NoValueError(Exception):
    """An argument has no value in this message; the text says which."""


class Commands:
    """All commands of a subscription, in order."""

    def __init__(self, config: RedisConfig, *, after_json: bool) -> None:
        """Raises ValueError that names the command and what is allowed."""
        if not config.hosts:
            raise ValueError("push.redis.hosts is empty; Redis needs at least one HOST:PORT")
        self.hosts = [_host(text) for text in config.hosts]
        if not config.commands:
            raise ValueError(
                "push.redis.commands is empty; give it lists such as [SET, 'user:{$.id}', '{body}']"
            )
        self._templates = [_template(command, after_json) for command in config.commands]

    def fill(self, job: ActionJob) -> list[list[bytes]]:
        """The commands for one message. Raises NoValueError."""
        try:
            return [[filler(job) for filler in template] for template in self._templates]
        except TooMuchWork as error:
            raise NoValueError(f"too much work: {error}") from error


def _host(text: str) -> tuple[str, int]:
    try:
        return parse_address(text)
    except ValueError as error:
        raise ValueError(f"push.redis.hosts: {error}") from error


def _template(command: Sequence[str], after_json: bool) -> list[Filler]:
    name = command[0].upper() if command else ""
    if name not in _SHAPES:
        raise ValueError(f"push.redis.commands: {name or 'an empty list'}; allowed: {', '.join(_SHAPES)}")
    arguments = list(command[1:])
    if not _fits(name, arguments):
        raise ValueError(f"push.redis.commands: {' '.join(command)}; allowed: {name} {_SHAPES[name]}")
    return [_constant(name), *(_filler(argument, after_json) for argument in arguments)]


def _fits(name: str, arguments: list[str]) -> bool:
    count = len(arguments)
    if name == "SET":
        return count >= 2 and _set_options([argument.upper() for argument in arguments[2:]])
    if name == "MSET":
        return count >= 2 and count % 2 == 0
    if name in ("HSET", "HMSET"):
        return count >= 3 and count % 2 == 1
    return count >= (1 if name == "DEL" else 2)


def _set_options(options: list[str]) -> bool:
    if options[:1] in (["NX"], ["XX"]):
        options = options[1:]
    if not options:
        return True
    return len(options) == 2 and options[0] in ("EX", "PX") and options[1].isdecimal() and int(options[1]) > 0


def _constant(text: str) -> Filler:
    raw = text.encode()
    return lambda job: raw


def _filler(argument: str, after_json: bool) -> Filler:
    if argument.startswith("$"):
        return _piece(argument, after_json)
    pieces: list[Filler] = []
    at = 0
    for match in _HOLE.finditer(argument):
        pieces.append(_constant(argument[at : match.start()]))
        pieces.append(_piece(match[1], after_json))
        at = match.end()
    pieces.append(_constant(argument[at:]))
    if len(pieces) == 1:
        return pieces[0]
    return lambda job: b"".join([piece(job) for piece in pieces])


def _piece(what: str, after_json: bool) -> Filler:
    known: dict[str, Filler] = {
        "key": lambda job: job.key,
        "tag": lambda job: job.tag,
        "topic": lambda job: job.place.topic.encode(),
        "body": _body,
    }
    if what in known:
        return known[what]
    if not what.startswith("$"):
        raise ValueError(
            f"push.redis.commands: {{{what}}}; allowed: {', '.join(known)}, or a path that begins with $"
        )
    if not after_json:
        raise ValueError(f"push.redis.commands: {what} is a path into the JSON; put Json before Redis")
    lookup = compile_path(what)

    def find(job: ActionJob) -> bytes:
        value = lookup(job)
        if value is ABSENT or value is None:
            raise NoValueError(f"there is nothing at {what}")
        return plain(value).encode()

    return find


def _body(job: ActionJob) -> bytes:
    body = job.body if job.json is ABSENT else job.text().encode()
    job.work.made(len(body))
    return body


def shown(name: bytes) -> str:
    """A command's name for an error text."""
    return readable(name)
