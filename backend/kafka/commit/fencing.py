"""Transactional names: what they are, and taking one over, which fences whoever has it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, Producer

from backend.kafka.options import KafkaOptions

INIT_S = 10.0  # of one attempt


def own_name(options: KafkaOptions, name: str) -> str:
    """The transactional id of a process."""
    return options.names.system(f"m.{name}")


def once_name(options: KafkaOptions) -> str:
    """The transactional id of what is done once in a namespace."""
    return options.names.system("once")


def fence(client: Mapping[str, object], names: Sequence[str]) -> str | None:
    """Take transactional ids over, in a native thread; why it could not be done."""
    errors: list[str] = []

    def take(name: str) -> None:
        config: dict[str, Any] = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 50, **client}
        try:
            Producer({**config, "transactional.id": name}).init_transactions(INIT_S)
        except Exception as error:  # whatever it was: nobody is fenced then
            errors.append(str(error.args[0].str() if isinstance(error, KafkaException) else repr(error)))

    threads = [threading.Thread(target=take, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors[0] if errors else None
