"""Which handlers of a test broker's consumers are running, so that the broker can wait until none is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ddmq_client.callables import find_signature_error, function_kind
from ddmq_client.errors import ClientError

ACK_FLUSH_MS = 1
_current_call: ContextVar[object] = ContextVar("current_call", default=None)  # of a handler, where one runs


class RunningHandlers:
    """The handlers of a broker's consumers: which calls of them have not returned.

    A handler may go on after it has acknowledged its messages, for example behind a block of replies.
    `on_returned` is called after each call of a handler.
    """

    def __init__(self, on_returned: Callable[[], object]) -> None:
        self.calls: set[object] = set()
        self._on_returned = on_returned

    def count_calls(
        self, handler: Callable[..., object] | None, options: dict[str, Any]
    ) -> tuple[Callable[..., object] | None, dict[str, Any]]:
        """Return the handler and the options of a consumer with every call of a handler counted."""
        counted = {"start": "first", "ack_flush_ms": ACK_FLUSH_MS, **options}
        if callable(options.get("batch_handler")):
            counted["batch_handler"] = self._wrap_handler(options["batch_handler"])
        return self._wrap_handler(handler) if callable(handler) else handler, counted

    def _wrap_handler(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        kind = function_kind(handler)
        if find_signature_error(handler):
            return handler  # which the consumer rejects
        if kind == "an async function":

            async def handle_async(*arguments: Any) -> Any:
                with self._count_call():
                    return await handler(*arguments)

            return handle_async
        if kind:
            return handler

        def handle(*arguments: Any) -> Any:
            with self._count_call():
                return handler(*arguments)

        return handle

    def check_outside(self, method: str) -> None:
        """Raise ClientError if a handler of this broker calls `method`, because `method` would wait for the
        handler."""
        if _current_call.get() in self.calls:
            raise ClientError(
                f"{method} is called in a handler, and would wait until that handler returns; allowed: in the"
                " test itself, outside of handlers"
            )

    @contextmanager
    def _count_call(self) -> Iterator[None]:
        call = object()
        outer = _current_call.set(call)
        self.calls.add(call)
        try:
            yield
        finally:
            _current_call.reset(outer)
            self.calls.remove(call)
            self._on_returned()
