"""A streaming query as a process of its own, for a test to kill: topic to JSON files, until all is read.

python -m tests.spark.stream_to_files SERVERS TOPIC OUT CHECKPOINT MESSAGES_PER_TRIGGER
"""

import sys

from metrics_job.sparksource import DdmqSource
from tests.spark.few_rows import small_session

if __name__ == "__main__":
    servers, topic, out, checkpoint, most = sys.argv[1:]
    spark = small_session("stream-to-files")
    spark.dataSource.register(DdmqSource)
    rows = (
        spark.readStream.format("ddmq")
        .option("servers", servers)
        .option("topic", topic)
        .option("startingOffsets", "first")
        .option("maxMessagesPerTrigger", most)
        .load()
    )
    query = (
        rows.selectExpr("queue", "offset", "cast(cast(value as string) as int) as value")
        .writeStream.format("json")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
