"""Read what a wheel contains: compiled modules, licence files, and why nothing was compiled."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from email import message_from_bytes
from pathlib import Path
from typing import NamedTuple

from ddmq_common import compiled

MANIFEST = f"ddmq_common/{compiled.FOLDER.name}/{compiled.MANIFEST}"


class WheelContents(NamedTuple):
    """A wheel and what it contains."""

    path: Path
    modules: int  # that are compiled
    reason: str  # why none is
    licences: tuple[str, ...]
    size_bytes: int


def read_contents(wheel: Path) -> WheelContents:
    """Read what a wheel says of itself, and check that the licence files it names are there."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        licences = message_from_bytes(archive.read(metadata)).get_all("License-File") or []
        folder = metadata.removesuffix("METADATA") + "licenses/"
        manifest = json.loads(archive.read(MANIFEST)) if MANIFEST in names else {}
        return WheelContents(
            wheel,
            len(manifest.get("modules", ())),
            manifest.get("reason", ""),
            tuple(name for name in licences if folder + name in names),
            wheel.stat().st_size,
        )


def contents_table(wheels: Iterable[WheelContents]) -> str:
    """Return a table of wheels for people."""
    rows = [("file", "KiB", "compiled modules", "licence files")]
    rows += [
        (
            wheel.path.name,
            f"{wheel.size_bytes / 1024:,.0f}",
            str(wheel.modules or "none"),
            ", ".join(wheel.licences),
        )
        for wheel in wheels
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        f"{name:<{widths[0]}}  {size:>{widths[1]}}  {modules:<{widths[2]}}  {licences}".rstrip()
        for name, size, modules, licences in rows
    )
