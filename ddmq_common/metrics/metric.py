"""A metric family, and the catalogue that families are put into as they are named (catalogue.py)."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple


class Metric(NamedTuple):
    """A metric family. Kind is counter, gauge or histogram (registry.Histogram, its values in `unit`).

    `unit`: "" (a count of what the name says), "us", "ms", "bytes", or "1" (a flag or a state).
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    unit: str


CATALOGUE: dict[str, Metric] = {}


def _add_metric(kind: str, name: str, text: str, *labels: str, unit: str = "") -> Metric:
    CATALOGUE[name] = Metric(name, kind, labels, text, unit)
    return CATALOGUE[name]


counter, gauge, histogram = (partial(_add_metric, kind) for kind in ("counter", "gauge", "histogram"))
