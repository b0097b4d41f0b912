"""Run `ddmq` with other constants of its options classes: ddmq_with_constants.py JSON ARGUMENTS…

The JSON maps MODULE:CLASS.CONSTANT to a value. A constant is set when the command has
imported its module.
"""

from __future__ import annotations

import json
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


class _ChangingLoader(Loader):
    """Loads a module, and sets constants of its classes."""

    def __init__(self, loader: Any, constants: dict[str, Any]) -> None:
        self._loader = loader
        self._constants = constants

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for path, value in self._constants.items():
            kind, _, constant = path.partition(".")
            assert hasattr(getattr(module, kind), constant), f"{kind} has no constant {constant}"
            setattr(getattr(module, kind), constant, value)


class _Finder:
    """Finds the modules whose constants change."""

    def __init__(self, constants: dict[str, dict[str, Any]]) -> None:
        self._constants = constants

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._constants:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        spec.loader = _ChangingLoader(spec.loader, self._constants[name])
        return spec


def main() -> None:
    constants: dict[str, dict[str, Any]] = {}
    for name, value in json.loads(sys.argv.pop(1)).items():
        module, _, path = name.partition(":")
        constants.setdefault(module, {})[path] = value
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.meta_path.insert(0, _Finder(constants))
    from ddmq_command import main as run

    run()


if __name__ == "__main__":
    main()
