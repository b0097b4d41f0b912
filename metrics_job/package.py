"""The zip that `spark-submit --py-files` gives to executors whose Python has not got this package.

Spark puts .zip, .egg and .jar files on the executors' path, and no wheels. What the executors import is pure
Python; compiled packages that it needs (pyarrow, msgspec) have to be in their Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from ddmq_common.errors import ConfigError

PACKAGES = (
    "metrics_job",
    "ddmq_common",
)  # they lie side by side, in a source tree and where they are installed


def write_zip(out: Path) -> int:
    """Write the packages that the job imports into the archive `out`; return the number of files.

    Raises ConfigError.
    """
    if out.suffix != ".zip":
        raise ConfigError(
            f"{out} does not end in .zip; Spark gives executors .zip files and no others of ours"
        )
    try:
        with ZipFile(out, "w", ZIP_DEFLATED) as archive:
            files = list(_list_sources())
            for path, name in files:
                archive.write(path, name)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}; name another file") from error
    return len(files)


def _list_sources() -> Iterator[tuple[Path, str]]:
    """Yield every source file and its name in the archive."""
    beside = Path(__file__).parents[1]
    for package in PACKAGES:
        for path in sorted((beside / package).rglob("*")):
            if path.suffix in (".py", ".css", ".js") and "_compiled" not in path.parts:
                yield path, str(path.relative_to(beside))
