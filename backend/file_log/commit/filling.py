"""Which of the waiting requests go into the next frame, in the order in which they came.

A request that cannot be packed, whatever it raises, is refused alone: the frame is as if it had never come.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from backend.file_log.commit.packing import FramePacker
from backend.file_log.commit.requests import AppendRequest, Request
from ddmq_common.errors import StorageError

log = logging.getLogger(__name__)
Later = Callable[..., object]  # runs a callback with its arguments from the hub


class Filled(NamedTuple):
    """What became of the requests that were taken."""

    late: list[Request]  # past their deadline; not answered yet
    bytes: int  # that all of them held


def fill(packer: FramePacker, pending: deque[Request], now: float, bytes_max: int, later: Later) -> Filled:
    """Pack requests until `bytes_max` is passed. `now` in monotonic seconds."""
    late: list[Request] = []
    plain: list[AppendRequest] = []
    left = bytes_max
    while pending and left > 0:
        request = pending.popleft()
        left -= request.size
        if request.completion.done:
            continue
        if request.deadline <= now:
            late.append(request)
        elif type(request) is AppendRequest:
            plain.append(request)
        else:
            _pack_plain(packer, plain, later)
            plain = []
            _pack_one(packer, request, later)
    _pack_plain(packer, plain, later)
    return Filled(late, bytes_max - left)


def _pack_plain(packer: FramePacker, requests: list[AppendRequest], later: Later) -> None:
    """Appends with nothing between them: one loop over all their records."""
    mark = packer.mark()
    try:
        results = packer.add_lists([request.records for request in requests])
    except Exception:  # one of them; which one shows when each goes by itself
        packer.back_to(mark)
        for request in requests:
            _pack_one(packer, request, later)
        return
    for request, own in zip(requests, results, strict=True):
        request.results = own
    packer.frame.requests += requests


def _pack_one(packer: FramePacker, request: Request, later: Later) -> None:
    mark = packer.mark()
    try:
        packed = request.pack(packer)
    except Exception as error:
        packer.back_to(mark)
        log.exception("a request of %d bytes could not be packed; it is refused", request.size)
        what = f"the request could not be packed ({type(error).__name__}: {error}); nothing of it was stored"
        later(request.refuse, StorageError(what))
        return
    if packed:
        packer.frame.requests.append(request)
