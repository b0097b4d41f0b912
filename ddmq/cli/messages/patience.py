"""What people are told when no producer proxy answers: soon that it is so, and what may help."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ddmq.address import HostPort
from ddmq.cli.output import hint
from ddmq_client import InvalidMessageError, SendError

PATIENCE_S = 1.0  # then people are told that the first request has no answer yet
HELP = "`ddmq serve` starts a server; --producer HOST:PORT names another"


class Patience:
    """One command's: tells once at most that nothing answers, and nothing when `quiet` (for programs)."""

    def __init__(self, producer: HostPort, timeout_ms: int, *, quiet: bool) -> None:
        self._text = f"no answer from {producer} yet; trying for {timeout_ms:,} ms"
        self._quiet = quiet
        self._helped = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around each request; only the first is told of."""
        if self._quiet:
            yield
            return
        timer = threading.Timer(PATIENCE_S, self._tell)
        timer.daemon = True
        timer.start()
        try:
            yield
        except SendError as error:
            self.over([error])
            raise
        finally:
            timer.cancel()
            self._quiet = True

    def over(self, errors: Iterable[BaseException | None]) -> None:
        """Say what may help, unless that was said, where nobody answered: `errors` are what came of all."""
        if not self._helped and all(map(_unanswered, errors)):
            self._help()

    def _tell(self) -> None:
        hint(self._text)
        self._help()

    def _help(self) -> None:
        self._helped = True
        hint(HELP)


def _unanswered(error: BaseException | None) -> bool:
    """No proxy has answered, and the message is not refused by the client."""
    return isinstance(error, SendError) and error.code is None and not isinstance(error, InvalidMessageError)
