"""Errors of the admin API alone."""

from ddmq_common.errors import CallerError


class NoSuchGroupError(CallerError):
    """The consumer group (or its subscription, or its dead letters) does not exist."""
