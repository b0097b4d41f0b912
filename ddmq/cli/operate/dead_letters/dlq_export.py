"""`ddmq dlq export`: dead letters with their bodies into a file, one JSON document a line."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.operate.dead_letters.dlq_filters import filter_options, read_filters
from ddmq.cli.output import hint, print_json, print_line, reason
from ddmq.cli.values import GROUP

TAIL_BYTES = 1 << 16  # of a file, read at a time while its last line is looked for
TIMEOUT_S = 60.0


@click.command("export", short_help="Write dead letters with their bodies into a file.")
@click.argument("group", type=GROUP)
@click.option(
    "--output", "path", metavar="FILE", required=True, type=click.Path(dir_okay=False, path_type=Path),
    help="The file, which must not exist; with --resume, the file that an earlier export has begun.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Continue FILE behind its last complete line.")
@filter_options
@admin_options
def export_dead_letters(
    group: str, path: Path, resume: bool, admin: AdminClient, as_json: bool, **options: str | None
) -> None:
    """Write GROUP's open dead letters, the oldest first, into FILE: one JSON document a line, with the whole
    body as "body" or, if it is not text, as "body_base64".

    \b
    Examples:
      ddmq dlq export billing --output letters.ndjson
      ddmq dlq export billing --error ValueError --output letters.ndjson
      ddmq dlq export billing --output letters.ndjson --resume

    Nothing is changed on the server. Dead letters that die meanwhile are exported, too. An export that was
    cut short continues with --resume and the same filter.
    """
    query = read_filters(**options)
    client = AdminClient(admin.address, TIMEOUT_S)
    try:
        with path.open("r+b" if resume else "xb") as file:
            after = _find_end(file) if resume else None
            count = 0
            for lines, exported in _read_pages(client, group, query, after):
                file.write(lines)
                file.flush()
                count += exported
                if not as_json and exported:
                    hint(f"{count:,} so far")
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise click.ClickException(f"{path} exists; --resume continues it, or name another file") from error
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {reason(error)}") from error
    if as_json:
        print_json({"group": group, "output": str(path), "exported": count})
    else:
        print_line(f"exported {count:,} dead letters of {group} to {path}")


def _read_pages(
    admin: AdminClient, group: str, query: Mapping[str, Any], after: str | None
) -> Iterator[tuple[bytes, int]]:
    """Yield the lines of each page, and the number of its dead letters."""
    while True:
        payload = admin.get_bytes("dlq", group, "export", after=after, **query)
        lines, _, end = payload.rstrip(b"\n").rpartition(b"\n")
        summary = msgspec.json.decode(end)
        yield lines + b"\n" if lines else b"", summary["exported"]
        after = summary["next"]
        if after is None:
            return


def _find_end(file: BinaryIO) -> str | None:
    """Cut an incomplete last line off, and return the cursor behind the last complete one."""
    end = file.seek(0, io.SEEK_END)
    complete = _find_newline(file, end) + 1
    file.truncate(complete)
    file.seek(_find_newline(file, complete - 1) + 1)
    line = file.read(complete)
    if not line:
        return None
    try:
        letter = msgspec.json.decode(line)
        return f"{letter['queue']}.{letter['offset'] + 1}"
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise click.ClickException("the last line of the file is no exported dead letter") from error


def _find_newline(file: BinaryIO, end: int) -> int:
    """Return the position of the last newline before `end`; -1 if there is none."""
    while end > 0:
        start = max(end - TAIL_BYTES, 0)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at
        end = start
    return -1
