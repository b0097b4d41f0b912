"""The `ddmq` command, before anything else of ours is imported: it runs on the packages installed with it.

An application may have packages with the names of ours, such as `backend` in an image with
`ENV PYTHONPATH=/app`. The working folder, and every folder of PYTHONPATH that holds such a package, is taken
off the import path of this process and of those that it starts. If a package of ours is missing then, or is
still another's, the command ends with one line that says which and what to do. The name of this package is
its own, so that no other hides it.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

OWN = Path(__file__).resolve().parents[1]
PACKAGES = (
    "backend", "ddmq", "ddmq_client", "ddmq_common", "ddmq_rpc", "delay_service", "metrics_job",
    "proxy_consumer", "proxy_producer",
)  # fmt: skip
UNINSTALLED = "ddmq-proxy and ddmq-client both contain ddmq_client, and uninstalling one of them removes it"
INSTALL_AGAIN = "in the source tree: pip install --force-reinstall --no-deps ."


def main() -> None:
    """Parse the command line and run the command."""
    leave_foreign_folders()
    if fault := packages_fault():
        sys.exit(f"Error: {fault}")
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # for the processes that it starts
    from ddmq.cli.root import run

    sys.exit(run(sys.argv[1:]))


def leave_foreign_folders() -> None:
    """Remove folders from sys.path and PYTHONPATH if other packages in them would be imported in place of
    ours."""
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    foreign = {entry for entry in entries if holds_foreign_package(_resolve_entry(entry))}
    folders = {_resolve_entry("."), *map(_resolve_entry, foreign)} - {OWN}
    sys.path[:] = [entry for entry in sys.path if _resolve_entry(entry) not in folders]
    if foreign:
        os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in entries if entry not in foreign)


def _resolve_entry(entry: str) -> Path:
    """Resolve an entry of the import path; a relative one is returned unchanged in a deleted working
    folder."""
    try:
        return Path(entry).resolve()
    except FileNotFoundError:
        return Path(entry)


def holds_foreign_package(folder: Path) -> bool:
    """Return whether a package with a name of ours, and not ours, would be found in `folder`."""
    return folder != OWN and any(PathFinder.find_spec(name, [str(folder)]) for name in PACKAGES)


def packages_fault() -> str:
    """Return a text that names a missing package of ddmq, or one of another origin, and the remedy; "" if all
    is well."""
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            cause = f" ({UNINSTALLED})" if name == "ddmq_client" else ""
            return f"the package {name} is missing in {OWN}{cause}; {INSTALL_AGAIN}"
        folder = Path(spec.origin).resolve().parents[1]
        if folder != OWN:
            return (
                f"Python finds the package {name} in {folder}, not the one of ddmq in {OWN}; "
                f"take {folder} off Python's import path, or install ddmq into an environment of its own"
            )
    return ""
