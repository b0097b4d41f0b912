"""The recordings as data, and a raw connection to replay them on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.interop import anyframe
from tests.interop.anyframe import Frame

FOLDER = Path(__file__).resolve().parent / "recordings"


class Exchange(NamedTuple):
    """A request and its reply (None: the connection was closed instead), as frames."""

    name: str  # java/consume_pull_01
    request: bytes
    reply: bytes | None

    @property
    def real(self) -> bool:
        """Whether a real DDMQ answered; else a small stand-in did."""
        return self.name.startswith("real-ddmq/")


class Step(NamedTuple):
    """One line of a relay log: `what` is open, close or a frame."""

    connection: str
    by_client: bool
    what: str | bytes


def exchanges(method: str = "") -> list[Exchange]:
    """All, or those of one method."""
    exchanges_of = []
    for path in sorted(FOLDER.glob(f"*/*_{method or '*'}_*.hex")):
        lines = path.read_text().splitlines()
        frames = [bytes.fromhex(line) for line in lines if line and not line.startswith("#")]
        name = f"{path.parent.name}/{path.stem}"
        exchanges_of.append(Exchange(name, frames[0], frames[1] if len(frames) > 1 else None))
    assert exchanges_of, method
    return exchanges_of


def conversation(name: str) -> list[Step]:
    """A relay log, such as `java/sequence_dropped`."""
    steps = []
    for line in (FOLDER / f"{name}.relay").read_text().splitlines():
        if not line.startswith("#"):
            _, connection, side, what = line.split()
            frame = what if what in ("open", "close") else bytes.fromhex(what)
            steps.append(Step(connection, side == "C", frame))
    return steps


def answered(steps: list[Step]) -> Iterator[tuple[Step, bytes | None]]:
    """The client's steps in order, each request with its recorded answer, or None for unanswered."""
    for index, step in enumerate(steps):
        if not step.by_client:
            continue
        reply = None
        if isinstance(step.what, bytes):
            here = [each for each in steps if each.connection == step.connection]
            nth = sum(each.by_client and isinstance(each.what, bytes) for each in _before(steps, index))
            replies = [each.what for each in here if not each.by_client and isinstance(each.what, bytes)]
            reply = replies[nth] if nth < len(replies) else None
        yield step, reply


def _before(steps: list[Step], index: int) -> list[Step]:
    return [each for each in steps[:index] if each.connection == steps[index].connection]


class Raw:
    """A connection that sends frames as they are and reads frames back."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)

    def exchange(self, frame: bytes) -> bytes:
        """Send a request, read its answer."""
        self.send(frame)
        return self.receive()

    def call(self, frame: Frame) -> Frame:
        """The same with trees; asserts that the answer is to this request."""
        answer = anyframe.read(self.exchange(anyframe.write(frame)))
        assert (answer.method, answer.sequence) == (frame.method, frame.sequence)
        return answer

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> bytes:
        """One frame. Raises AssertionError when the connection ends."""
        head = self._exactly(4)
        return head + self._exactly(int.from_bytes(head, "big"))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            assert more, f"closed after {len(data)} of {count} bytes"
            data += more
        return data

    def closed(self) -> bool:
        """Waits for the server to end the connection."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def patient(request: bytes) -> bytes:
    """A recorded send that waits a minute: the recorded time-out is that of a quiet machine."""
    frame = anyframe.read(request)
    fields = {**frame.fields, 2: (anyframe.I32, 60_000)} if 2 in frame.fields else frame.fields
    return anyframe.write(frame._replace(fields=fields))


def without_shard(answer: Frame) -> Frame:
    """An answer to sendDelaySync whose id has no shard: every server has its own number of them."""
    (kind, fields) = answer.fields[0]
    groups = fields[3][1].split(b"-", 7)
    if len(groups) != 8:
        return answer
    ident = b"-".join([*groups[:6], b"?", groups[7]])
    return answer._replace(fields={0: (kind, {**fields, 3: (fields[3][0], ident)})})
