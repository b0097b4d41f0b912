"""A session that the job did not make; no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddmq_common.errors import ConfigError
from metrics_job.batch import run_batch


def test_spark_connect_is_rejected_in_one_line(tmp_path: Path) -> None:
    session: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(ConfigError, match=r"this session is Spark Connect.*spark-submit"):
        run_batch(tmp_path, tmp_path / "out", spark=session)
    assert not (tmp_path / "out").exists()
