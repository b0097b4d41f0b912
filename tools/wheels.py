"""Build the wheels of the server and of the client, and try each on every supported Python.

    python tools/wheels.py                          for Python 3.11 to 3.14, into dist/
    python tools/wheels.py 3.12 /opt/py/bin/python3 for these versions, or the Pythons at these paths
    python tools/wheels.py --require-all            exit code 1 if a Python is missing, too
    python tools/wheels.py --no-trial               builds only

The server's wheel with compiled modules fits one version of Python, so there is one for each. The server's
wheel without them and the client's fit every Python and are built once. Each wheel must carry its licence
files. Its trial installs it into an empty environment with the versions and hashes of the lock files, and
sends and receives a message there (tools/wheel_trial.py).

uv finds the Pythons, fetches missing ones if the network allows it, builds and installs. A Python that is
missing is named and skipped. Exit code 1 if a build or a trial fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ddmq_common import compiled
from tools.client_wheel import copy_client
from tools.interpreters import Interpreter, answer_of, find_interpreter, run_uv
from tools.tree_copy import ROOT, copy_installed
from tools.wheel_contents import WheelContents, contents_table, read_contents
from tools.wheel_trial import TrialError, try_client, try_server

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
BUILD_LOCK = ROOT / "conf" / "docker" / "build.lock"


class BuildError(Exception):
    """A wheel could not be built, or lacks something."""


def build_wheel(
    interpreter: Interpreter, copy_source: Callable[[Path], None], target: Path, *, modules: bool
) -> WheelContents:
    """Build one wheel from a copy of the sources, check it, and put it into `target`."""
    variables = {name: value for name, value in os.environ.items() if name != compiled.SWITCH} | commit_time()
    if not modules:
        variables[compiled.SWITCH] = "0"
    with tempfile.TemporaryDirectory() as scratch:
        source, built = Path(scratch, "source"), Path(scratch, "built")
        copy_source(source)
        command = ["build", "--wheel", "--python", str(interpreter.path), "--out-dir", str(built)]
        command += ["--build-constraints", str(BUILD_LOCK), "--require-hashes", str(source)]
        try:
            run_uv(*command, variables=variables)
        except subprocess.CalledProcessError as error:
            raise BuildError(error.stderr[-4_000:].strip()) from error
        (wheel,) = built.glob("*.whl")
        contents = read_contents(wheel)
        if modules and not contents.modules:
            raise BuildError(f"nothing was compiled: {contents.reason}")
        if missing := {"LICENSE", "NOTICE"} - set(contents.licences):
            raise BuildError(f"{wheel.name} lacks {', '.join(sorted(missing))}")
        target.mkdir(parents=True, exist_ok=True)
        return contents._replace(path=Path(shutil.copy(wheel, target)))


def commit_time() -> dict[str, str]:
    """Return the time of the commit, which the files of a wheel carry: so a build can be repeated."""
    time = answer_of("git", "-C", str(ROOT), "log", "-1", "--format=%ct")
    return {"SOURCE_DATE_EPOCH": time} if time else {}


class Release:
    """The wheels of one run, and the outcome of each trial."""

    def __init__(self, target: Path) -> None:
        self.wheels: list[WheelContents] = []
        self.outcomes: dict[tuple[str, str], str] = {}  # by Python and kind of wheel
        self.failed = False
        self._target = target

    def build(
        self, kind: str, interpreter: Interpreter, copy_source: Callable[[Path], None]
    ) -> WheelContents | None:
        """Build one wheel; return None and remember the failure if that is not possible."""
        report(f"Python {interpreter.version}: building the {kind} wheel")
        try:
            wheel = build_wheel(interpreter, copy_source, self._target, modules=kind == "compiled")
        except BuildError as error:
            self._fail(interpreter, kind, f"not built: {error}")
            return None
        self.wheels.append(wheel)
        self.outcomes[interpreter.version, kind] = "built"
        return wheel

    def try_all(self, interpreter: Interpreter, server: Iterable[WheelContents], client: Path | None) -> None:
        """Try the wheels of the server and the client's on one Python."""
        for wheel in server:
            kind = "compiled" if wheel.modules else "pure"
            self._try(interpreter, kind, partial(try_server, interpreter.path, wheel))
        if client is not None:
            self._try(interpreter, "client", partial(try_client, interpreter.path, client))

    def _try(self, interpreter: Interpreter, kind: str, trial: Callable[[], float]) -> None:
        try:
            seconds = trial()
        except TrialError as error:
            self._fail(interpreter, kind, f"trial failed: {error}")
            return
        self.outcomes[interpreter.version, kind] = "passed"
        report(f"Python {interpreter.version}: trial of the {kind} wheel passed in {seconds:.0f} s")

    def _fail(self, interpreter: Interpreter, kind: str, reason: str) -> None:
        self.failed = True
        self.outcomes[interpreter.version, kind] = "FAILED"
        report(f"Python {interpreter.version}: {kind} wheel: {reason}", sys.stderr)

    def outcome_table(self) -> str:
        """Return one line for each Python with the outcome of each kind of wheel."""
        kinds = ("compiled", "pure", "client")
        lines = [f"{'Python':<10}" + "".join(f"{kind:<10}" for kind in kinds)]
        for version in dict.fromkeys(version for version, _ in self.outcomes):
            cells = (self.outcomes.get((version, kind), "-") for kind in kinds)
            lines.append(f"{version:<10}" + "".join(f"{cell:<10}" for cell in cells))
        return "\n".join(line.rstrip() for line in lines)


def report(line: str, file: TextIO | None = None) -> None:
    """Print a line of progress, or of what is wrong."""
    print(f"wheels: {line}", file=file or sys.stdout, flush=True)


def build_release(interpreters: Sequence[Interpreter], target: Path, *, trial: bool) -> Release:
    """Build all wheels, then try each on every Python that it fits."""
    release = Release(target)
    compiled_wheels = {
        interpreter: release.build("compiled", interpreter, copy_installed) for interpreter in interpreters
    }
    pure = release.build("pure", interpreters[0], copy_installed)
    client = release.build("client", interpreters[0], copy_client)
    if trial:
        for interpreter, wheel in compiled_wheels.items():
            server = [candidate for candidate in (wheel, pure) if candidate is not None]
            release.try_all(interpreter, server, client and client.path)
    return release


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; return the exit code."""
    parser = argparse.ArgumentParser(description="Build the wheels and try each on every Python.")
    parser.add_argument("pythons", nargs="*", default=PYTHONS, metavar="VERSION|PATH")
    parser.add_argument("--require-all", action="store_true", help="fail if a Python is missing")
    parser.add_argument("--no-trial", action="store_true", help="build only")
    parser.add_argument("--target", type=Path, default=ROOT / "dist", help="the folder of the wheels")
    options = parser.parse_args(arguments)
    requests = {request: find_interpreter(request) for request in options.pythons}
    missing = [request for request, interpreter in requests.items() if interpreter is None]
    for request in missing:
        report(f"Python {request} is not on this machine and could not be fetched; skipped", sys.stderr)
    interpreters = [interpreter for interpreter in requests.values() if interpreter is not None]
    if not interpreters:
        return 1
    release = build_release(interpreters, options.target, trial=not options.no_trial)
    print(f"\n{contents_table(release.wheels)}\n\n{release.outcome_table()}", flush=True)
    for request in missing:
        print(f"{request:<10}missing")
    return 1 if release.failed or (missing and options.require_all) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
