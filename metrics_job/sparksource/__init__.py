"""The Spark format `ddmq`: topics as DataFrames, batch and streaming, read and written (docs/spark.md).

    from metrics_job.sparksource import DdmqSource
    spark.dataSource.register(DdmqSource)
    frame = spark.read.format("ddmq").option("servers", "mq-1:9713").option("topic", "orders").load()

Reading goes through the consumer proxies by ranges of offsets (ddmq_client.RangeReader), so it needs nothing
of any engine and disturbs no consumer group. `options` and `offsets` decide and do nothing; `ranges` reads
one partition, `source` and `sink` are what Spark calls. It must be importable on every executor.
"""

from metrics_job.sparksource.source import DdmqSource

__all__ = ["DdmqSource"]
