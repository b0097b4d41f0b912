"""Compile the modules that pyproject.toml lists under `tool.ddmq.compiled`, with mypyc and a C compiler.

    python tools/compile.py            into ddmq_common/_compiled; does nothing when that is up to date

Where there is no C compiler, or no Python.h for it, one line says so and the sources run as they are;
DDMQ_COMPILED=0 leaves it out. Where compiling fails, a banner says why. Either way the reason is kept in the
manifest, because pip shows nothing of a build that succeeds: `ddmq --version` and `ddmq doctor` report it.
What is made and who loads it: ddmq_common/compiled.py. Wheels are built with the two commands below
(pyproject.toml, tool.setuptools.cmdclass), carry what was made, and are named after it: a wheel without
libraries is one for every Python.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any, NamedTuple

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from parsed import imports

from ddmq_common import compiled

ROOT = compiled.ROOT
OPTIMISE = ["-O2", "-g0", "-w"]  # why not another: decision 23
# What is not installed where a wheel is built is not looked into. Modules are named from ROOT, which is the
# current folder of the call, whatever `__init__.py` lies above it.
MYPY = ["--config-file=", "--ignore-missing-imports", "--explicit-package-bases"]
MYPY_VARIABLES = ("MYPYPATH", "MYPY_CACHE_DIR")  # the caller's, which are about other sources
REASON_CHARS_MAX = 400


class NotCompiledError(Exception):
    """Nothing was compiled; the text says why."""


class CompilingFailedError(NotCompiledError):
    """Nothing was compiled, although there is a C compiler."""


class Library(NamedTuple):
    """One module to link: its name, its C files, and what the compiler must be told for them."""

    module: str
    sources: list[Path]
    flags: list[str]


def listed() -> list[str]:
    """The modules to compile."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return list(tomllib.load(file)["tool"]["ddmq"]["compiled"])


def file_of(name: str) -> Path | None:
    """Return the file of a module or package of this tree; None for others."""
    path = ROOT.joinpath(*name.split("."))
    candidates = (path.with_name(path.name + ".py"), path / "__init__.py")
    return next((file for file in candidates if file.exists()), None)


def sources() -> list[str]:
    """The files of the listed modules and of all of ours that they import, and so on."""
    todo, source_files = listed(), set[Path]()
    while todo:
        name = todo.pop()
        file = file_of(name) or file_of(name.rpartition(".")[0] or name)  # a module, or a name in one
        if file is not None and file not in source_files:
            source_files.add(file)
            todo += imports(file)
    return sorted(str(file.relative_to(ROOT)) for file in source_files)


def manifest() -> dict[str, Any]:
    """For which Python modules are compiled, which they are, and of what they were made."""
    digests = {file: compiled.source_digest((ROOT / file).read_bytes()) for file in sources()}
    return {"suffix": compiled.SUFFIX, "modules": listed(), "sources": digests}


def up_to_date(folder: Path) -> bool:
    """Whether the folder has what these sources give."""
    try:
        return bool(json.loads((folder / compiled.MANIFEST).read_bytes()) == manifest())
    except (OSError, ValueError):
        return False


def compiler() -> list[str]:
    """The command that compiles C for this Python. Raises NotCompiledError where there is none."""
    if os.environ.get(compiled.SWITCH) == "0":
        raise NotCompiledError(f"{compiled.SWITCH} is 0")
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(command[0]) is None:
        raise NotCompiledError(f"there is no C compiler ({command[0]})")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise NotCompiledError(f"{sysconfig.get_path('include')} has no Python.h (Debian: python3-dev)")
    return [*command, f"-I{sysconfig.get_path('include')}", "-fPIC", *OPTIMISE]


def translated(scratch: Path) -> list[Library]:
    """Translate the modules to C. Raises CompilingFailedError when mypyc rejects one, with its output."""
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        raise CompilingFailedError(f"mypyc is not installed ({error})") from error
    before, variables = Path.cwd(), {name: os.environ.pop(name, None) for name in MYPY_VARIABLES}
    os.chdir(ROOT)  # mypyc names modules by where they lie below the current folder
    try:
        files = [str(Path(*module.split(".")).with_suffix(".py")) for module in listed()]
        with open(scratch / "output", "w+") as output, redirect_stdout(output):
            extensions = mypycify(
                [*MYPY, *files], multi_file=True, target_dir=str(scratch), group_name=compiled.GROUP
            )
        return [
            Library(
                extension.name,
                [Path(source).resolve() for source in extension.sources],
                [f"-I{Path(folder).resolve()}" for folder in extension.include_dirs],
            )
            for extension in extensions
        ]
    except SystemExit as error:
        raise CompilingFailedError(
            (scratch / "output").read_text().strip() or "mypyc gave no reason"
        ) from error
    finally:
        os.chdir(before)
        os.environ.update({name: value for name, value in variables.items() if value is not None})


def build(folder: Path) -> None:
    """Fill the folder; what was there goes. Raises NotCompiledError."""
    command, contents = compiler(), manifest()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as workers:
        scratch, ready = Path(name), Path(name, "ready")
        ready.mkdir()
        libraries = translated(scratch)
        compiling = []
        for library in libraries:
            for source, to in zip(library.sources, _objects(library, scratch), strict=True):
                compiling.append(
                    workers.submit(_run, [*command, *library.flags, "-c", str(source), "-o", to])
                )
        for one in compiling:
            one.result()
        for library in libraries:
            to = str(ready / (library.module + compiled.SUFFIX))
            _run([*command, "-shared", *_objects(library, scratch), "-o", to])
        (ready / compiled.MANIFEST).write_text(json.dumps(contents, indent=1), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ready, folder)


def _objects(library: Library, scratch: Path) -> list[str]:
    return [str(scratch / f"{library.module}-{at}.o") for at in range(len(library.sources))]


def _run(command: list[str]) -> None:
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    if output.returncode:
        raise CompilingFailedError(f"{command[0]} failed: {output.stderr[-2000:]}")


def fill(folder: Path) -> bool:
    """Compile into the folder and say so; else keep there why not. Returns whether it holds libraries now."""
    begun = time.monotonic()
    print(f"compile: {len(listed())} modules, which takes one to two minutes", flush=True)
    try:
        build(folder)
    except NotCompiledError as error:
        report(error)
        if os.environ.get(compiled.SWITCH) != "0":  # who switches it off for once keeps what is compiled
            keep_reason(folder, error)
        return False
    print(f"compile: {len(listed())} modules in {time.monotonic() - begun:.0f} s")
    return True


def report(error: NotCompiledError) -> None:
    """Print why the sources run interpreted: in one line, or between bars where compiling failed."""
    line = f"compile: the sources run as they are, interpreted: {error}"
    if isinstance(error, CompilingFailedError):
        bar = "*" * 78
        line = (
            f"{bar}\ncompile: COMPILING FAILED. It all works, but takes more processor time.\n{line}\n{bar}"
        )
    print(line, file=sys.stderr)


def keep_reason(folder: Path, error: NotCompiledError) -> None:
    """Replace the folder by one whose manifest says in one line why nothing is compiled."""
    reason = " ".join(str(error).split())[:REASON_CHARS_MAX]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    manifest = compiled.unbuilt_manifest(reason, isinstance(error, CompilingFailedError))
    (folder / compiled.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


class BuildPy(build_py):
    """The packages of a wheel, and what was compiled of them."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # `make` compiles in the tree
            return
        folder = Path(self.build_lib, "ddmq_common", compiled.FOLDER.name)
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier build in the same folder
        if up_to_date(compiled.FOLDER):
            shutil.copytree(compiled.FOLDER, folder)
        else:
            fill(folder)


class Wheel(bdist_wheel):
    """A wheel for this Python and machine where modules were compiled, else one for all."""

    def finalize_options(self) -> None:
        self.distribution.has_ext_modules = is_compilable
        super().finalize_options()

    def run(self) -> None:
        if not self.skip_build:
            self.run_command("build")
        folder = Path(self.get_finalized_command("build_py").build_lib, "ddmq_common", compiled.FOLDER.name)
        has_libraries = any(folder.glob(f"*{compiled.SUFFIX}"))
        self.distribution.has_ext_modules = lambda: has_libraries
        self.root_is_pure = not has_libraries
        super().run()


def is_compilable() -> bool:
    """Return whether there is a compiler; whether it succeeds shows after the build."""
    with suppress(NotCompiledError):
        return bool(compiler())
    return False


if __name__ == "__main__":
    if not up_to_date(compiled.FOLDER):
        fill(compiled.FOLDER)
