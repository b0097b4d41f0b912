"""What the format `ddmq` raises, by who must act."""


class SourceError(Exception):
    """Root of what this format raises on purpose; each text says what to do."""


class SourceOptionError(SourceError, ValueError):
    """An option, a column or a mode is wrong."""


class DataLossError(SourceError):
    """Messages that were to be read are not there any more."""


class WriteError(SourceError):
    """Messages could not be stored."""
