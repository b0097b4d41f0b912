"""The `ddmq` command."""

import os
import sys
from pathlib import Path


def own_modules_only(path: list[str], folder: Path, package: Path) -> list[str]:
    """The import path without `folder`, in which the command runs: what lies there is the user's, and may be
    called `backend`, too. Unless the package itself is imported from there, as in a source tree."""
    return [entry for entry in path if package.parent == folder or (Path(entry or ".").resolve() != folder)]


def main() -> None:
    """Parse the command line and run what it says."""
    sys.path[:] = own_modules_only(sys.path, Path.cwd().resolve(), Path(__file__).resolve().parent)
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # for the processes that it starts
    from ddmq.cli.root import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
