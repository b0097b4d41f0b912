"""Makes a server report its findings soon: its processes load this at their start, from PYTHONPATH.

Every condition holds SHARE times as short until it is a finding, also ages and windows that it is compared
with. With TEST_DISK_FREE, the disk has so many bytes free, less what the data directory takes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SHARE = 600  # ten minutes become a second
TREND_WINDOW_S = 6  # of DdmqDiskFillsUp
TOTAL_BYTES = 4 << 30
DISK_FREE = "TEST_DISK_FREE"


def shorten_rules(table: Any) -> None:
    """Ages, windows without a delivery, and durations; not the windows in which counters grow."""
    table.RULES = tuple(_shorten(rule) for rule in table.RULES)
    table.RULES_BY_NAME = {rule.name: rule for rule in table.RULES}


def _shorten(rule: Any) -> Any:
    condition = rule.condition
    match type(condition).__name__:
        case "GaugeAbove" if rule.unit == "ms":
            condition = condition._replace(above=condition.above / SHARE)
        case "NotConsumed":
            condition = condition._replace(window_s=condition.window_s / SHARE)
        case "FallsBelow":
            condition = condition._replace(window_s=TREND_WINDOW_S)
    return rule._replace(condition=condition, for_s=rule.for_s / SHARE)


def evaluate_often(watch: Any) -> None:
    watch.TICK_S, watch.FRESH_S = 0.2, 0.1


def notice_stalls_soon(stalled: Any) -> None:
    stalled.CHECK_INTERVAL_S, stalled.STALLED_S = 0.2, 2.0


def limit_disk(storage: Any) -> None:
    if DISK_FREE in os.environ:
        storage.Storage.space = lambda self, folder: storage.Space(measure_free(folder), TOTAL_BYTES)


def measure_free(folder: str) -> int:
    """The bytes that are left of TEST_DISK_FREE."""
    used = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                used += os.lstat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                continue  # deleted meanwhile
    return max(int(os.environ[DISK_FREE]) - used, 0)


CHANGES: dict[str, Callable[[Any], None]] = {
    "ddmq_common.findings.table": shorten_rules,
    "ddmq.server.findings.watch": evaluate_often,
    "proxy_consumer.groups.stalled": notice_stalls_soon,
    "backend.file_log.storage": limit_disk,
}


class _AlteringLoader(Loader):
    def __init__(self, loader: Any, change: Callable[[Any], None]) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)


class _AlteringFinder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in CHANGES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None, name
        spec.loader = _AlteringLoader(spec.loader, CHANGES[name])
        return spec


sys.meta_path.insert(0, _AlteringFinder())  # type: ignore[arg-type]
