"""The modules that run compiled, and the finder that loads them.

`tools/compile.py` translates the modules that pyproject.toml names under `tool.ddmq.compiled` with mypyc:
one library with their code, a small one for each of them, and a manifest, in the folder `_compiled` beside
this file. They are used all together or not at all: where the manifest was made from other sources than
those that lie here, or for another Python, the sources run, interpreted, so what was edited is what runs.
(Sources are those of the modules and all of ours that they import, for types that stand there are compiled
in.) With DDMQ_COMPILED=0 they do, too.

Each package that has such modules calls `install` before anything of it is loaded.

Where nothing could be compiled the manifest has the reason in place of modules (`unbuilt_manifest`), so that
`ddmq --version` and `ddmq doctor` can still say it long after the installation.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from hashlib import blake2b
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(__file__).resolve().parent / "_compiled"
MANIFEST = "manifest.json"
SWITCH = "DDMQ_COMPILED"
GROUP = "ddmq"
LIBRARY = f"{GROUP}__mypyc"  # the module that holds the code of all of them, as mypyc calls it
SUFFIX = EXTENSION_SUFFIXES[0]
NOTHING_COMPILED = "no module was compiled at the installation"


def source_digest(source: bytes) -> str:
    """Return the digest that the manifest stores for a source file."""
    return blake2b(source, digest_size=16).hexdigest()


def unbuilt_manifest(reason: str, failed: bool) -> dict[str, Any]:
    """Return the manifest of an installation without libraries.

    `failed`: a compiler was there, but failed.
    """
    return {"suffix": SUFFIX, "modules": [], "sources": {}, "reason": reason, "failed": failed}


class CompiledFinder:
    """An import finder that loads the listed modules from their compiled libraries instead of their sources.

    It does not inherit from `importlib.abc`, which would take longer to load than all compiled modules.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._names = frozenset((LIBRARY, *modules))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names:
            return None
        file = str(FOLDER / (fullname + SUFFIX))
        spec = ModuleSpec(fullname, ExtensionFileLoader(fullname, file), origin=file)
        spec.has_location = True
        return spec


def _mismatch_reason(suffix: str, sources: dict[str, str]) -> str:
    """Return why libraries compiled from these sources cannot be used here; "" if they can."""
    if suffix != SUFFIX:
        return f"what is compiled is not for this Python ({SUFFIX})"
    for file, digest in sources.items():
        try:
            with open(f"{ROOT}/{file}", "rb") as source:
                same = source_digest(source.read()) == digest
        except OSError:
            same = False
        if not same:
            return f"{file} was changed since it was compiled; `make setup` compiles it again"
    return ""


class CompiledState:
    """Whether the listed modules run compiled in this process, and why not."""

    def __init__(self) -> None:
        self.modules: tuple[str, ...] = ()
        self.reason = ""
        self.failed = False  # the installation tried to compile them, and could not
        self._looked = False

    def install(self) -> None:
        """Install the import finder for the listed modules. Only the first call has an effect."""
        if self._looked:
            return
        self._looked = True
        if os.environ.get(SWITCH) == "0":
            self.reason = f"{SWITCH} is 0"
            return
        try:
            manifest = json.loads((FOLDER / MANIFEST).read_bytes())
            suffix, sources, modules = manifest["suffix"], dict(manifest["sources"]), manifest["modules"]
            reason, self.failed = str(manifest.get("reason", "")), bool(manifest.get("failed"))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self.reason = NOTHING_COMPILED
            return
        self.reason = f"{NOTHING_COMPILED}: {reason}" if reason else _mismatch_reason(suffix, sources)
        if not self.reason:
            self.modules = tuple(modules)
            sys.meta_path.insert(0, CompiledFinder(self.modules))

    def __str__(self) -> str:
        if self.modules:
            return f"{len(self.modules)} modules compiled"
        return f"interpreted: {self.reason}"


STATE = CompiledState()
install = STATE.install
