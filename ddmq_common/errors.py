"""The error tree, by who must act. Wire codes are mapped from it in one place per proxy.

CallerError     the request is wrong; sending it again changes nothing
TryLaterError   the request is fine, we cannot take it now
StorageError    the disk or the engine failed; an operator must look
RemoteError     another process of ours, or the engine, did not answer

Every message says what was wrong, with which value, and what is allowed or to do next.
Anything else that is raised is a bug and is not caught as if it were one of these.
"""


class DdmqError(Exception):
    """Root of all errors this project raises on purpose."""


class CallerError(DdmqError):
    """The request is wrong; sending it again changes nothing."""


class UnknownTopicError(CallerError):
    """The topic (or its queue, or this incarnation of it) does not exist."""


class TopicExistsError(CallerError):
    """A topic of that name exists already."""


class UnsupportedError(CallerError):
    """The engine lacks the capability that the call needs; the message names it."""


class ConfigError(CallerError):
    """A configuration file or a command line is wrong: names file, key, value, what is allowed."""


class FencedError(CallerError):
    """An epoch or generation older than the current one; the holder has lost its claim."""


class TryLaterError(DdmqError):
    """The request is valid, but a bound is reached or a component is not ready yet."""


class BoundReachedError(TryLaterError):
    """A configured bound is reached; names the bound and its value."""


class DiskFullError(TryLaterError):
    """Free disk space is under the refusal mark; client sends are refused, the rest goes on."""


class DrainingError(TryLaterError):
    """Shutting down: finishes what is in flight, takes nothing new."""


class StorageError(DdmqError):
    """Writing or reading the store failed."""


class RefusedUntilRecoveredError(StorageError):
    """An fsync failed; the log refuses writes until what it holds has been proven durable again."""


class NotWriterError(StorageError):
    """This process may not write the log any more; what is refused with this was not stored."""


class DamagedError(StorageError):
    """Stored bytes do not match their checksum; they are never served."""


class NewerFormatError(StorageError):
    """A newer release wrote it; nothing was changed. The message names both versions, and what to do."""


def newer_format(what: str, found: int, known: int) -> NewerFormatError:
    """The error for `what`, whose format version is `found`, above the highest `known` one."""
    return NewerFormatError(
        f"{what} has format version {found}, this program knows versions up to {known}: start the release"
        " that wrote it, or a later one; nothing was changed"
    )


class RemoteError(DdmqError):
    """The process or engine on the other side is gone or silent; the outcome may be unknown."""
