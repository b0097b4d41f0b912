"""The sink Redis: runs the commands of a message, in order, at one of the hosts; the first error fails the
job.

DEL, SET [NX|XX] [EX|PX n], MSET, HSET, HMSET and HDEL: templates that are checked once and filled in per
message. An argument that begins with `$` is a path into the JSON; in any other, `{key}`, `{tag}`, `{topic}`,
`{body}` and `{$.path}` are replaced. Redis does not reply to these commands with an array: an array is
rejected before any of it is read. Connections are gevent's own sockets, one stack per host.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from random import Random

import gevent

from proxy_consumer.order_keys.canonical import TooMuchWork
from proxy_consumer.push.actions.config import RedisConfig
from proxy_consumer.push.actions.job import ABSENT, ActionJob, plain_value
from proxy_consumer.push.actions.paths import compile_path
from proxy_consumer.push.actions.targets import AllowList, parse_address
from proxy_consumer.push.sinks.connections import Connection, Receiving, ReusableConnections, UnboundedError
from proxy_consumer.push.verdict import DONE, Pushed, Verdict, VerdictKind

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
LINE_BYTES_MAX = 4_096
BULK_BYTES_MAX = 64 << 10
REPLY_BYTES_MAX = LINE_BYTES_MAX + BULK_BYTES_MAX
READS_MAX = 8
Address = tuple[str, int]


class NoValueError(Exception):
    """An argument has no value in this message; the text says which."""


class Commands:
    """The command templates of a subscription, in order."""

    def __init__(self, config: RedisConfig, *, after_json: bool) -> None:
        """Check the templates. Raises ValueError that names the command and what is allowed."""
        if not config.hosts:
            raise ValueError("push.redis.hosts is empty; Redis needs at least one HOST:PORT")
        self.hosts = [_parse_host(text) for text in config.hosts]
        if not config.commands:
            raise ValueError(
                "push.redis.commands is empty; give it lists such as [SET, 'user:{$.id}', '{body}']"
            )
        self._templates = [_parse_template(command, after_json) for command in config.commands]

    def fill_commands(self, job: ActionJob) -> list[list[bytes]]:
        """Return the commands for one message. Raises NoValueError."""
        try:
            return [[filler(job) for filler in template] for template in self._templates]
        except TooMuchWork as error:
            raise NoValueError(f"too much work: {error}") from error


def _parse_host(text: str) -> tuple[str, int]:
    try:
        return parse_address(text)
    except ValueError as error:
        raise ValueError(f"push.redis.hosts: {error}") from error


def _parse_template(command: Sequence[str], after_json: bool) -> list[Filler]:
    name = command[0].upper() if command else ""
    if name not in _SHAPES:
        raise ValueError(f"push.redis.commands: {name or 'an empty list'}; allowed: {', '.join(_SHAPES)}")
    arguments = list(command[1:])
    if not _check_arguments(name, arguments):
        raise ValueError(f"push.redis.commands: {' '.join(command)}; allowed: {name} {_SHAPES[name]}")
    return [_constant_filler(name), *(_parse_filler(argument, after_json) for argument in arguments)]


def _check_arguments(name: str, arguments: list[str]) -> bool:
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


def _constant_filler(text: str) -> Filler:
    raw = text.encode()
    return lambda job: raw


def _parse_filler(argument: str, after_json: bool) -> Filler:
    if argument.startswith("$"):
        return _parse_placeholder(argument, after_json)
    fillers: list[Filler] = []
    at = 0
    for match in _HOLE.finditer(argument):
        fillers.append(_constant_filler(argument[at : match.start()]))
        fillers.append(_parse_placeholder(match[1], after_json))
        at = match.end()
    fillers.append(_constant_filler(argument[at:]))
    if len(fillers) == 1:
        return fillers[0]
    return lambda job: b"".join([filler(job) for filler in fillers])


def _parse_placeholder(what: str, after_json: bool) -> Filler:
    fillers: dict[str, Filler] = {
        "key": lambda job: job.key,
        "tag": lambda job: job.tag,
        "topic": lambda job: job.position.topic.encode(),
        "body": _body_of,
    }
    if what in fillers:
        return fillers[what]
    if not what.startswith("$"):
        raise ValueError(
            f"push.redis.commands: {{{what}}}; allowed: {', '.join(fillers)}, or a path that begins with $"
        )
    if not after_json:
        raise ValueError(f"push.redis.commands: {what} is a path into the JSON; put Json before Redis")
    lookup = compile_path(what)

    def find_value(job: ActionJob) -> bytes:
        value = lookup(job)
        if value is ABSENT or value is None:
            raise NoValueError(f"there is nothing at {what}")
        return plain_value(value).encode()

    return find_value


def _body_of(job: ActionJob) -> bytes:
    body = job.body if job.json is ABSENT else job.text_for_sink().encode()
    job.work.count_bytes(len(body))
    return body


class RefusedError(Exception):
    """Redis replied with an error; the connection can be reused."""


class InvalidReplyError(Exception):
    """The reply is not valid for any of the sink's commands."""


def encode_command(words: Sequence[bytes]) -> bytes:
    """Encode a command for the Redis protocol."""
    chunks = [b"*%d\r\n" % len(words)]
    for word in words:
        chunks += (b"$%d\r\n" % len(word), word, b"\r\n")
    return b"".join(chunks)


def read_reply(receiving: Receiving) -> None:
    """Read one reply to its end. Raises RefusedError, InvalidReplyError, UnboundedError, EOFError or
    OSError."""
    line = receiving.read_line(LINE_BYTES_MAX)
    kind, rest = line[:1], line[1:]
    if kind == b"-":
        raise RefusedError(rest.decode("utf-8", "replace"))
    if kind == b"$" and rest != b"-1":
        if not rest.isdigit() or len(rest) > 9 or int(rest) > BULK_BYTES_MAX:
            raise InvalidReplyError(f"a text of {rest[:20]!r} bytes; allowed: {BULK_BYTES_MAX}")
        receiving.read_exactly(int(rest) + 2)
    elif kind not in (b"+", b":", b"$"):
        raise InvalidReplyError(f"{line[:40]!r} is no reply to a command of the sink")
    if receiving.left_over:
        raise InvalidReplyError("more came than the reply")


class CommandError(Exception):
    """Redis refused a command, or did not answer; the text says which and why."""


class _RedisConnection(Connection):
    """A connection that is authenticated at its first command."""

    def run(self, commands: Sequence[Sequence[bytes]], password: str, until: float) -> None:
        """Run the commands in order until the first error. Raises RefusedError, and as `read_reply` does."""
        if self.open() and password:
            self._run((b"AUTH", password.encode()), until)
        for command in commands:
            self._run(command, until)

    def _run(self, command: Sequence[bytes], until: float) -> None:
        self.sock.sendall(encode_command(command))
        try:
            read_reply(Receiving(self.sock, REPLY_BYTES_MAX, READS_MAX, until))
        except RefusedError as error:
            raise RefusedError(f"{command[0].decode()}: {error}") from error


class RedisPool:
    """Reusable Redis connections, at most `connections_max` per host."""

    def __init__(self, password: str, timeout_s: float, connections_max: int) -> None:
        self._password = password
        self._timeout_s = timeout_s
        self._connections_max = connections_max
        self._hosts: dict[Address, ReusableConnections[_RedisConnection]] = {}

    def close(self) -> None:
        """Close the idle connections; commands in progress end by themselves."""
        for connections in self._hosts.values():
            connections.close()

    def run(self, address: Address, commands: Sequence[Sequence[bytes]]) -> None:
        """Run the commands in order until the first error. Raises CommandError."""
        connections = self._hosts.setdefault(address, ReusableConnections(self._connections_max))
        with connections.use_connection(lambda: _RedisConnection(*address)) as connection:
            try:
                with gevent.Timeout(self._timeout_s):
                    connection.run(commands, self._password, time.monotonic() + self._timeout_s)
                connection.reusable = True
            except gevent.Timeout:
                raise CommandError(f"no answer within {self._timeout_s:g} s") from None
            except RefusedError as error:
                connection.reusable = not str(error).startswith("AUTH: ")  # a complete reply, though an error
                raise CommandError(str(error)) from error
            except (InvalidReplyError, UnboundedError, EOFError) as error:
                raise CommandError(str(error)) from error
            except OSError as error:
                raise CommandError(f"{type(error).__name__}: {error}") from error


class RedisSink:
    """Sends Redis commands for each message of one push subscription."""

    def __init__(
        self,
        config: RedisConfig,
        allowed: Callable[[], AllowList],
        random: Random,
        *,
        after_json: bool,
    ) -> None:
        self._commands = Commands(config, after_json=after_json)
        self._allowed = allowed
        self._random = random
        self._pool = RedisPool(config.password, config.timeout_ms / 1000, config.connections_max)

    @property
    def config_error(self) -> str | None:
        """The error text for the first host that push_targets does not allow; None if all are allowed."""
        errors = (self._allowed().find_target_error(*host) for host in self._commands.hosts)
        return next((error for error in errors if error is not None), None)

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.close()

    def push(self, pushed: Pushed) -> Verdict:
        """Run all commands of the message at a random host."""
        pushed.requests += 1
        try:
            commands = self._commands.fill_commands(pushed.job)
        except NoValueError as error:
            return Verdict(VerdictKind.FAIL, f"Redis: {error}")
        host = self._random.choice(self._commands.hosts)
        host_error = self._allowed().find_target_error(*host)
        if host_error is not None:
            return Verdict(VerdictKind.FAIL, f"Redis: {host_error}")
        try:
            self._pool.run(host, commands)
        except CommandError as error:
            return Verdict(VerdictKind.FAIL, f"Redis {host[0]}:{host[1]}: {error}")
        return DONE
