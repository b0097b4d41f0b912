"""Explain a call with an argument that does not exist: name the argument that is meant, and the page. Pure.

`explain_arguments` wraps the constructors and `send`. It changes no signature, and it examines a call only
after Python has rejected it. Users of Kafka, RocketMQ, RabbitMQ, Celery and Dramatiq have their own names for
arguments; the tables below list those that no similar name leads to.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")
SIMILARITY_MIN = 0.7
SUGGESTIONS_MAX = 3

# Argument of this client → names of its counterparts in other clients.
_COUNTERPARTS = {
    "proxies": ("bootstrap_servers", "brokers", "broker_url", "host", "name_server", "servers", "url"),
    "handler": ("callback", "listener", "message_listener", "on_message"),
    "threads": ("concurrency", "consume_thread_num", "max_workers", "num_workers", "workers"),
    "concurrency": ("threads", "consume_thread_num", "max_workers", "num_workers", "workers"),
    "start": ("auto_offset_reset", "consume_from_where", "from_where"),
    "auto_ack": ("enable_auto_commit", "no_ack"),
    "tags": ("expression", "filter", "sub_expression"),
    "sql": ("filter", "selector"),
    "body": ("data", "message", "payload", "value"),
    "key": ("message_group", "ordering_key"),
    "shard_key": ("partition_key",),
    "queue": ("partition",),
    "properties": ("headers",),
    "level": ("delay_level",),
    "delay": ("countdown",),
    "deliver_at": ("eta",),
    "every": ("interval", "period"),
    "attempts_max": ("max_retries", "retries", "retry_times"),
    "servers": (
        "address",
        "bootstrap_servers",
        "broker_url",
        "brokers",
        "host",
        "name_server",
        "proxies",
        "url",
    ),
    "producer_proxies": ("bootstrap_servers", "broker_url", "host", "producers", "proxies", "servers", "url"),
    "consumer_proxies": ("bootstrap_servers", "broker_url", "consumers", "host", "proxies", "servers", "url"),
    "max_messages": ("batch_size", "count", "limit", "max_batch", "max_num", "max_records", "size"),
    "delay_ms": ("backoff", "countdown", "delay", "delay_s", "delay_seconds", "retry_after"),
    "reason": ("cause", "error", "exc_info", "exception", "message"),
    "tls": (
        "cafile",
        "security_protocol",
        "ssl",
        "ssl_ca",
        "ssl_cafile",
        "ssl_certfile",
        "ssl_context",
        "ssl_keyfile",
        "use_ssl",
        "use_tls",
    ),
    "queues": ("num_partitions", "num_queues", "partition_count", "partitions", "queue_count", "shards"),
}
# Names without a counterpart, and what to use instead.
_ELSEWHERE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("dead_letter_queue", "dead_letter_topic", "dlq", "on_dead_letter", "on_failure"),
        "no function is called for a dead letter. `ddmq dlq show GROUP`, Admin.list_dead_letters(GROUP) and"
        " any consumer of the topic %DLQ%GROUP read them; `ddmq group set GROUP --topic TOPIC"
        " --on-dead-letter park` makes the key wait for an operator instead (docs/retries.md#dead-letters)",
    ),
    (
        ("max_attempts", "max_reconsume_times", "max_retries", "retries", "retry_backoff"),
        "the group's settings retry_intervals_ms, retry_steps and ordered_deliveries_max say how often a"
        " message is delivered, as in `ddmq group set GROUP --topic TOPIC --retry-steps 3`;"
        " message.fail(delay_ms=...) says when the next attempt is (docs/retries.md)",
    ),
    (
        ("message_ttl", "retention", "retention_days", "retention_hours", "ttl"),
        "the file log retains all topics alike, as `retention` in file_log.yaml says (docs/retention.md); on"
        " Kafka a topic has the setting retention_ms (docs/kafka.md)",
    ),
    (
        (
            "catch_up",
            "countdown",
            "cron",
            "deliver_at",
            "delay",
            "delay_level",
            "delay_ms",
            "eta",
            "every",
            "level",
        ),
        "a delay belongs to the call that sends one message, as in"
        " producer.send(topic, body, delay=timedelta(minutes=5)) (docs/delay.md)",
    ),
    (("priority",), "there are no priorities; give urgent messages a topic of their own (docs/client.md)"),
    (
        ("access_key", "password", "sasl_mechanism", "secret_key"),
        "there are no passwords; TLS with a client certificate is `tls=TlsOptions(...)` (docs/security.md)",
    ),
)


def explain_foreign_name(name: str, names: Sequence[str], page: str) -> str:
    """Return a text that names our option for another messaging system's `name`; "" for any other name."""
    counterparts = _list_counterparts(name, names)
    if counterparts:
        return _format_question(counterparts, page)
    return next((text for foreign_names, text in _ELSEWHERE if name in foreign_names), "")


def explain_arguments(
    page: str, missing: str = "", surplus: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: the TypeError of a wrong argument names the right one, and `page`.

    `missing`: added to the error if an argument is missing. `surplus`: what is allowed, if there are too many
    arguments by position.
    """

    def decorate_function(function: Callable[P, R]) -> Callable[P, R]:
        explain = partial(_explain_error, function, page, missing, surplus)
        if inspect.iscoroutinefunction(function):
            return cast(Callable[P, R], _wrap_async(function, explain))

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                if _is_raised_inside(error):
                    raise
                raise explain(error, args, kwargs) from None

        return call

    return decorate_function


def _wrap_async(function: Callable[..., Any], explain: Callable[..., TypeError]) -> Callable[..., Any]:
    """Wrap a coroutine function in one, so that it is still known as such, to mocks for example."""

    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except TypeError as error:
            if _is_raised_inside(error):
                raise
            raise explain(error, args, kwargs) from None

    return call


def _is_raised_inside(error: TypeError) -> bool:
    """Return whether the function's own code raised the error. Then the error is not about its arguments'
    names."""
    return error.__traceback__ is None or error.__traceback__.tb_next is not None


def _explain_error(
    function: Callable[..., Any],
    page: str,
    missing: str,
    surplus: str,
    error: TypeError,
    args: Sequence[object],
    kwargs: dict[str, Any],
) -> TypeError:
    """Return an error in place of Python's own; that one if it says enough."""
    parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters if each.name != "self"]
    owner = function.__qualname__.removesuffix(".__init__")
    call = owner if owner != function.__qualname__ else function.__name__
    unknown = [name for name in kwargs if name not in names]
    if unknown:
        suggestions = (
            f"{call}() has no argument {name!r}; {_suggest_name(name, names, page)}" for name in unknown
        )
        return TypeError("\n".join(suggestions))
    by_position = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    if len(args) <= len(by_position):
        return TypeError(f"{error}; {missing} ({page})") if missing and " missing " in str(error) else error
    positional = [name for name in by_position if name != "self"]
    count = len(args) - len(by_position) + len(positional)
    takes = f"{call}() takes {', '.join(positional)} by position, and got {count} arguments"
    if surplus:
        return TypeError(f"{takes}; {surplus} ({page})")
    by_name = [name for name in names if name not in positional]
    others = f"all others by name, as in {by_name[0]}=..." if by_name else f"at most {len(positional)}"
    return TypeError(f"{takes}; allowed: {others} ({page})")


def _suggest_name(name: str, names: Sequence[str], page: str) -> str:
    explanation = explain_foreign_name(name, names, page)
    if explanation:
        return explanation
    settings = _group_settings() if "group" in names else []
    similar = [] if name in settings else get_close_matches(name, names, SUGGESTIONS_MAX, SIMILARITY_MIN)
    if similar:
        return _format_question(similar, page)
    for setting in get_close_matches(name, settings, 1, SIMILARITY_MIN):
        option = setting.replace("_", "-")
        return (
            f"{setting} is a setting of the group: `ddmq group set GROUP --topic TOPIC --{option} ...`, or"
            f" Admin.update_subscription(GROUP, TOPIC, {setting}=...) (docs/configuration.md)"
        )
    words = set(name.split("_")) - {"max", "ms", "on"}
    sharing = [argument for argument in names if words & set(argument.split("_"))][:SUGGESTIONS_MAX]
    return _format_question(sharing, page) if sharing else f"allowed: {', '.join(names)} ({page})"


def _list_counterparts(name: str, names: Sequence[str]) -> list[str]:
    return [
        argument
        for argument, foreign_names in _COUNTERPARTS.items()
        if name in foreign_names and argument in names
    ]


def _format_question(names: Sequence[str], page: str) -> str:
    return f"did you mean {' or '.join(names)}? ({page})"


def _group_settings() -> list[str]:
    from ddmq_client.admin.settings import GroupSettings  # only now: an application may need no Admin

    return list(GroupSettings.__annotations__)
