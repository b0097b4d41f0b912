"""One line of a sample file, as msgspec decodes it: strictly."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ddmq_common.metrics.cells import BUCKETS

EXACT = 1 << 53  # below it every whole number is a double
Whole = Annotated[int, msgspec.Meta(ge=0, lt=EXACT)]


class Line(msgspec.Struct, gc=False, rename={"start": "from"}):
    """One line as docs/formats-samples.md has it; other fields are passed over."""

    v: Literal[1]
    process: str
    instance: str
    seq: Whole
    start: Whole
    to: Whole
    metric: str
    labels: msgspec.Raw
    value: float | None = None
    sum: float | None = None
    buckets: list[Annotated[int, msgspec.Meta(ge=0, lt=BUCKETS)]] | None = None
    counts: list[Annotated[int, msgspec.Meta(ge=1, lt=EXACT)]] | None = None
