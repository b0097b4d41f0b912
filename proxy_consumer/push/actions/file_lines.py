"""What the File sink writes, and into which file: names that are never a path, one line a message."""

from __future__ import annotations

import re
from base64 import b64encode

from proxy_consumer.push.actions.config import FileConfig
from proxy_consumer.push.actions.job import ABSENT, ActionJob, compact, readable

NAME_CHARS_MAX = 128
_NAME = re.compile(
    r"(?:[A-Za-z0-9_-]|\{topic\}|\{group\}|\{date\})(?:[A-Za-z0-9_.-]|\{topic\}|\{group\}|\{date\})*\Z"
)


class NotALineError(Exception):
    """The message cannot stand on one line."""


def check_file(config: FileConfig) -> None:
    """Raises ValueError when File cannot work with these settings."""
    if len(config.name) > NAME_CHARS_MAX or not _NAME.match(config.name):
        raise ValueError(
            f"push.file.name is {config.name!r}; allowed: letters, digits, _ - . (not first) and "
            f"{{topic}}, {{group}}, {{date}}, at most {NAME_CHARS_MAX} characters; it is never a path"
        )


def file_name(config: FileConfig, job: ActionJob, date: str) -> str:
    """The stem of the file for one message; topics and groups have no dot and no slash."""
    return (
        config.name.replace("{topic}", job.place.topic)
        .replace("{group}", job.place.group)
        .replace("{date}", date)
    )


def line(config: FileConfig, job: ActionJob) -> bytes:
    """One line with its end. Raises NotALineError for a body with a line break of its own."""
    if config.content == "record":
        return compact(_record(job)).encode() + b"\n"
    body = job.body if job.json is ABSENT else job.text().encode()
    if b"\n" in body:
        raise NotALineError(
            "the body has a line break; set push.file.content: record, or put Json before File"
        )
    return body + b"\n"


def _record(job: ActionJob) -> dict[str, object]:
    place = job.place
    made: dict[str, object] = {"topic": place.topic, "qid": place.qid, "offset": place.offset}
    if job.key:
        made["key"] = readable(job.key)
    if job.tag:
        made["tag"] = readable(job.tag)
    if job.properties:
        made["properties"] = job.properties_text()
    if job.json is not ABSENT:
        made["body"] = job.json
        return made
    try:
        made["body"] = job.body.decode()
    except UnicodeDecodeError:
        made["body_base64"] = b64encode(job.body).decode()
    return made
