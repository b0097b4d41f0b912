"""Sample files into minutes, by columns: Python workers take Arrow batches and return others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

Batches = Iterator[Any]


def map_in_arrow(rows: DataFrame, work: Callable[[Batches], Batches], result: Any) -> DataFrame:
    """Apply `work` as DataFrame.mapInArrow does, but without pandas. `result`: an Arrow schema."""
    kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    udf: Any = UserDefinedFunction(work, from_arrow_schema(result), evalType=kind)
    java: Any = rows._jdf
    return DataFrame(java.mapInArrow(udf(*rows.columns)._jc, False, None), rows.sparkSession)
