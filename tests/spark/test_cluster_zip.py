"""The documented command, on a cluster whose executors' Python has not got the package."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from bench.samples_generator import Shape, write
from ddmq_common.errors import ConfigError
from ddmq_common.java import find_java, packaged_java
from metrics_job.package import write_zip
from metrics_job.session import wrapped_java
from tests.spark import reference, tables_read

ROOT = Path(__file__).parents[2]
SHAPE = Shape(samples=400, seed=8, faults=0.2, interval_ms=20_000, topics=1, groups=1)
ON_EXECUTORS = ("pyarrow", "msgspec")  # what docs/metrics-job.md says that their Python needs
BARE_PYTHON = """\
#!/bin/sh
# The interpreter without its site-packages, but for what executors need.
PYTHONPATH={packages}:$PYTHONPATH exec {python} -S "$@"
"""
ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "USER")


def bare_python(folder: Path) -> Path:
    packages = folder / "packages"
    packages.mkdir()
    for name in ON_EXECUTORS:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).parent
        (packages / name).symlink_to(source)
        for libraries in source.parent.glob(f"{name}.libs"):
            (packages / libraries.name).symlink_to(libraries)
    python = folder / "python"
    base = getattr(sys, "_base_executable", sys.executable)
    python.write_text(BARE_PYTHON.format(packages=packages, python=base))
    python.chmod(0o755)
    return python


def java_home(folder: Path) -> Path:
    home = find_java(os.environ)
    if home is not None:
        return home
    packaged = packaged_java()
    assert packaged is not None
    return wrapped_java(packaged, folder / "java")


def test_the_zip_has_what_executors_import_and_nothing_compiled(tmp_path: Path) -> None:
    assert write_zip(tmp_path / "job.zip") > 50
    names = set(ZipFile(tmp_path / "job.zip").namelist())
    assert {"metrics_job/lag.py", "metrics_job/arrow/read.py", "ddmq_common/metrics/cells.py"} <= names
    assert {Path(name).suffix for name in names} == {".py", ".css", ".js"}


@pytest.mark.parametrize(
    ("name", "says"), [("job.whl", "does not end in .zip"), ("no/job.zip", "cannot be written")]
)
def test_a_zip_that_cannot_be_is_one_line(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        write_zip(tmp_path / name)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1_800)  # a driver and an executor of their own
def test_executors_without_the_package_take_it_from_the_zip(tmp_path: Path) -> None:
    python = bare_python(tmp_path)
    result = subprocess.run(
        [python, "-c", "import metrics_job"], capture_output=True, cwd=tmp_path, check=False
    )
    assert b"No module named 'metrics_job'" in result.stderr
    samples, out, archive = tmp_path / "samples", tmp_path / "out", tmp_path / "job.zip"
    write(SHAPE, samples)
    job = [sys.executable, "-m", "metrics_job", "package", str(archive)]
    subprocess.run(job, check=True, cwd=ROOT)
    (tmp_path / "run.py").write_text("from metrics_job.cli import main; main()\n")
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    spark_home = Path(spec.origin).parent
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    command = [str(spark_home / "bin" / "spark-submit"), "--master", "local-cluster[1,1,1024]"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command += ["--driver-memory", "768m", "--executor-memory", "768m", "--py-files", str(archive)]
    command += [str(tmp_path / "run.py"), "batch", "--samples", str(samples), "--out", str(out)]
    of_spark = {
        "JAVA_HOME": java_home(tmp_path),
        "SPARK_HOME": spark_home,
        "SPARK_WORKER_DIR": tmp_path / "work",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    environment |= {name: str(value) for name, value in of_spark.items()}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    samples_read = reference.read(samples)
    for period, length in (("minute", reference.MINUTE_MS), ("hour", reference.HOUR_MS)):
        tables_read.same(tables_read.counters(out, period), reference.counters(samples_read.lines, length))
        tables_read.same(tables_read.gauges(out, period), reference.gauges(samples_read.lines, length))
        tables_read.same(tables_read.latencies(out, period), reference.latencies(samples_read.lines, length))
    tables_read.same(tables_read.processes(out), reference.processes(samples_read))
    tables_read.same(tables_read.rejects(out), samples_read.rejects)
