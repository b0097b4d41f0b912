"""Use the README's commands in clones that lie in folders which have made tests or the demo fail.

    python tools/folder_trial.py             every case
    python tools/folder_trial.py spaces      this one

Each clone gets this environment's packages as hard links. `make test` runs TESTS there, and in one of them
`make demo` runs, too. Under root the cases of an ordinary user run as nobody. What a failed command printed
is shown, and the exit code is 1. `.ci/run` runs every case.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ddmq_common import compiled
from tests.support.folders import is_open_to_others, reachable_folder
from tools.tree_copy import ROOT, copy_tree

NOBODY = 65534
LONG = "long-" * 22  # the path of a socket below it is over the limit of 107 bytes
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
SITE = Path("lib", PYTHON, "site-packages")
TESTS = (
    "tests/service/sql/test_sql_relay.py",
    "tests/scenarios/test_readme.py",
    "tests/scenarios/test_docs_console.py::test_the_commands_do_what_the_page_says[README.md]",
    "tests/scenarios/test_docs_console.py::test_the_commands_do_what_the_page_says[docs/first-steps.md]",
    "tests/scenarios/test_compile.py::test_a_module_is_compiled_and_loaded",
    "tests/scenarios/test_private_files.py::test_every_file_of_a_server_is_its_users_alone",
    "tests/scenarios/test_any_folder.py::test_a_server_and_its_processes_import_their_own_packages[True]",
)
WITHIN_S = 1_800


class Case(NamedTuple):
    """A folder, and who uses the clone in it.

    `above` and `temporary` are names of folders; `package`: the first has an `__init__.py`.
    """

    above: str
    temporary: str = "tmp"
    mode: int = 0o755
    package: bool = False
    ordinary_user: bool = False
    umask: int = 0o022
    demo: bool = False
    variables: Mapping[str, str] = {}


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
CASES = {
    "closed": Case(f"private/{LONG}", mode=0o700, temporary=LONG),
    "spaces": Case("a b", "temporary files", ordinary_user=True, umask=0o077, demo=True, variables=ASCII),
    "package": Case("package", package=True, umask=0o002),
    "hidden": Case(".hidden", package=True, ordinary_user=True, variables=ASCII),
}


class Trial:
    """One case, in a folder of its own that every user can reach."""

    def __init__(self, case: Case, base: Path) -> None:
        self._case = case
        self._base = base
        self._above = base / case.above
        self._clone = self._above / "clone"
        self._as_nobody = case.ordinary_user and os.geteuid() == 0
        self._python = Path(sys.base_prefix)

    def prepare(self) -> None:
        """Make the clone with its environment, and the user's folders."""
        self._above.mkdir(parents=True)
        if self._case.package:
            (self._above / "__init__.py").touch()
        copy_tree(self._clone)
        if compiled.FOLDER.exists():
            shutil.copytree(compiled.FOLDER, self._clone / compiled.FOLDER.relative_to(ROOT))
        if self._as_nobody and not is_open_to_others(self._python):
            shutil.copytree(self._python, self._base / "python", symlinks=True, copy_function=link_or_copy)
            self._python = self._base / "python"
        for folder in (self._base / "home", self._base / self._case.temporary):
            folder.mkdir()
        self._make_environment()
        if self._as_nobody:
            self._give_away()
        (self._base / Path(self._case.above).parts[0]).chmod(self._case.mode)

    def _make_environment(self) -> None:
        """Make .venv by hand: the packages are linked, ddmq is not installed yet, which `make` does."""
        home, site = self._clone / ".venv", Path(sys.prefix) / SITE
        variables = self._variables()
        command = [str(self._python / "bin" / PYTHON), "-m", "venv", "--without-pip", str(home)]
        subprocess.run(command, env=variables, check=True)
        (home / SITE).rmdir()
        own_packages = shutil.ignore_patterns("*ddmq_*", "__editable__*")
        shutil.copytree(site, home / SITE, symlinks=True, ignore=own_packages, copy_function=link_or_copy)

    def _give_away(self) -> None:
        """Make nobody the owner of all but the linked files, which keep their owner here, too."""
        for folder in (self._base / "home", self._base / self._case.temporary, self._above):
            for path in (folder, *folder.rglob("*")):
                if path.is_dir() or path.lstat().st_nlink == 1:
                    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)

    def _variables(self) -> dict[str, str]:
        variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PYTEST", "LC_"))
        }
        variables.pop("MAKEFLAGS", None)
        return variables | {
            "PATH": f"{self._python / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "LD_LIBRARY_PATH": str(self._python / "lib"),
            "HOME": str(self._base / "home"),
            "TMPDIR": str(self._base / self._case.temporary),
            **self._case.variables,
        }

    def run(self) -> bool:
        """Run the commands; returns whether they passed."""
        commands = [["make", "test", "JOBS=2", f"TESTS={' '.join(TESTS)}"]]
        if self._case.demo:
            commands.append(["make", "demo"])
        return all(map(self._passes, commands))

    def _passes(self, command: list[str]) -> bool:
        user: dict[str, Any] = {}
        if self._as_nobody:
            user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(
                command, cwd=self._clone, env=self._variables(), umask=self._case.umask,
                start_new_session=True, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **user,
            )  # fmt: skip
            code = wait_or_kill(process)
            if code != 0:
                output.seek(0)
                print(output.read()[-40_000:])
                print(f"***** `{' '.join(command)}` in {self._clone}: {code}", flush=True)
        return code == 0


def wait_or_kill(process: subprocess.Popen[bytes]) -> int | str:
    """Return the exit code; or kill the processes of its session after WITHIN_S, and say so."""
    try:
        return process.wait(WITHIN_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"killed after {WITHIN_S} s"


def link_or_copy(source: str, target: str) -> None:
    """Link a file that everybody may read, where that is possible; else copy it."""
    try:
        if os.stat(source).st_mode & 0o004:
            os.link(source, target)
            return
    except OSError:  # another file system
        pass
    shutil.copy2(source, target)
    os.chmod(target, os.stat(target).st_mode | 0o444)


def main(names: list[str]) -> int:
    """Run the cases of these names, or all."""
    # Once for all: the clones take the libraries of this tree where they are up to date.
    subprocess.run([sys.executable, str(ROOT / "tools" / "compile.py")], check=True)
    failed = []
    for name in names or CASES:
        begun = time.monotonic()
        with reachable_folder(near=Path(sys.prefix)) as base:
            trial = Trial(CASES[name], base)
            trial.prepare()
            if not trial.run():
                failed.append(name)
        print(f"folder {name}: {time.monotonic() - begun:.0f} s", flush=True)
    if failed:
        print(f"a clone does not work in: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
