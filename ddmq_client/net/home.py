"""The process that something is used in: a fork of it has none of its threads, and shares its connections.

Two processes on one connection would take each other's answers for their own: a send would hear that it
is stored when another process's message is. So what was used before a fork refuses to be used after it.
"""

from __future__ import annotations

import os

from ddmq_client.errors import ClientError


class Home:
    """Where it was used first."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._process: int | None = None

    @property
    def left(self) -> bool:
        """This is a fork of that process."""
        return self._process is not None and self._process != os.getpid()

    def enter(self) -> None:
        """It is used here; ClientError in a fork of where it was used before."""
        if self._process is None:
            self._process = os.getpid()
        elif self._process != os.getpid():
            raise ClientError(
                f"this {self._what} was used before process {self._process} forked; make one in each process"
            )
