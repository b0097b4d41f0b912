"""The method `authenticate` of both services: the request of a new connection, and its answer."""

from __future__ import annotations

from ddmq_client.core import frames, verdicts
from ddmq_client.core.frames import FrameError
from ddmq_client.core.verdicts import CallFailed, CallVerdict
from ddmq_client.idl import producer as idl
from ddmq_client.idl.codes import Code
from ddmq_client.printable import printable
from ddmq_client.wire.codec import Specs, decode, encode

METHOD = b"authenticate"
SEQUENCE_ID = 0  # no call has it
TEXT_CHARS_MAX = 1_000


class _LoginAnswer:
    code: int = 0
    msg: str = ""


class _AuthenticateResult:
    success: _LoginAnswer | None = None


_specs = Specs()
_REQUEST = _specs.register_struct(idl.AuthRequest)
_specs.register_struct(idl.AuthResponse, _LoginAnswer)
_RESULT = _specs.register_struct(idl.ProducerService.authenticate_result, _AuthenticateResult)


def encode_login(token: bytes) -> bytes:
    """Encode the frame that logs a connection in; it is sent ahead of the first call."""
    request = idl.AuthRequest(mechanism="token", credentials=token)
    head = frames.call_head(METHOD, SEQUENCE_ID)
    return frames.build_frame((head, *frames.request_args(encode(request, _REQUEST))))


def find_login_failure(name: str, payload: bytes) -> CallFailed | None:
    """Return why the proxy `name` has rejected the login, so that no call of the connection is carried out;
    None if it has accepted it."""
    try:
        head = frames.reply_head(payload)
        if head.kind == frames.EXCEPTION:
            return _reject_login(name, "the proxy does not know logins; it is of an older release")
        answer = decode(payload, head.body_at, _RESULT).success
    except FrameError as error:
        return verdicts.answer_lost(name, error)
    if answer is None or answer.code:
        text = "no reason" if answer is None else printable(answer.msg[:TEXT_CHARS_MAX])
        text = f"the login was rejected: {text}"
        if answer is not None and answer.code == Code.BUSY:  # a quota, which may soon have capacity
            return CallFailed(CallVerdict.NOT_SENT, f"{name}: {text}")
        return _reject_login(name, text)
    return None


def _reject_login(name: str, text: str) -> CallFailed:
    return CallFailed(CallVerdict.LOGIN_FAILED, f"{name}: {text}")
