"""The error tree, by who must act. Wire codes are mapped from it in one place per proxy.

CallerError     the request is wrong; sending it again changes nothing
TryLaterError   the request is fine, we cannot take it now
StorageError    the disk or the engine failed; an operator must look
RemoteError     another process of ours, or the engine, did not answer

Every message says what was wrong, with which value, and what is allowed or to do next.
Anything else that is raised is a bug and is not caught as if it were one of these.
"""


class DdmqError(Exception):
    """The root of all errors that this project raises deliberately."""


class CallerError(DdmqError):
    """The request is wrong; repeating it is pointless."""


class UnknownTopicError(CallerError):
    """The topic (or its queue, or this incarnation of it) does not exist."""


class TopicExistsError(CallerError):
    """A topic of that name already exists."""


class UnsupportedError(CallerError):
    """The engine lacks a capability that the call needs; the message names it."""


class ConflictError(CallerError):
    """The state of the requested object does not allow the request."""


class ConfigError(CallerError):
    """A configuration file or command line is wrong.

    The message names file, key, value and allowed values.
    """


class FencedError(CallerError):
    """The call used an outdated epoch or generation; its holder has lost the claim."""


class TryLaterError(DdmqError):
    """The request is valid, but a bound is reached or a component is not ready yet."""


class BoundReachedError(TryLaterError):
    """A configured bound is reached; the message names the bound and its value."""


class DiskFullError(TryLaterError):
    """Free disk space is below the configured limit. Client sends are refused; all other work continues."""


class TopicUnavailableError(TryLaterError):
    """Topics cannot take records now; nothing is stored. `topics`: their names and the reasons."""

    def __init__(self, topics: dict[str, str]) -> None:
        reasons = ", ".join(f"{name}: {reason}" for name, reason in sorted(topics.items()))
        super().__init__(f"not available now: topic {reasons}")
        self.topics = topics


class DrainingError(TryLaterError):
    """The process is shutting down: it finishes work in flight and accepts no more."""


class StorageError(DdmqError):
    """Writing or reading the store failed."""


class RefusedUntilRecoveredError(StorageError):
    """An fsync failed. The log refuses writes until its contents have been verified as durable."""


class NotWriterError(StorageError):
    """This process may no longer write the log. A call that fails with this error stored nothing."""


class DamagedError(StorageError):
    """Stored bytes do not match their checksum; they are never served."""


class NewerFormatError(StorageError):
    """A newer release wrote the data, so this release rejects it. The data is unchanged.

    The message names both versions, and what to do.
    """


def newer_format(what: str, version: int, supported: int) -> NewerFormatError:
    """Return the error for `what` whose format `version` is above `supported`, the highest one."""
    return NewerFormatError(
        f"{what} has format version {version}, this program knows versions up to {supported}: start the"
        " release that wrote it, or a later one; nothing was changed"
    )


class RemoteError(DdmqError):
    """The remote process or engine is down or does not answer; the outcome may be unknown."""
