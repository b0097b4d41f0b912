"""Read a topic as a Spark DataFrame, add up the amounts by region, and write the sums to another topic.

pip install '.[spark]'
ddmq serve --data-dir ./data
python examples/spark_topic.py
"""

import json

from pyspark.sql import functions as f

from ddmq_client import Producer
from metrics_job.session import session
from metrics_job.sparksource import DdmqSource

ORDERS = [("eu", 120), ("us", 80), ("eu", 40), ("asia", 15), ("us", 20)]

with Producer("127.0.0.1:9613") as producer:
    for number, (region, amount) in enumerate(ORDERS):
        producer.send("orders", json.dumps({"region": region, "amount": amount}), key=str(number))

spark = session("orders by region")
spark.dataSource.register(DdmqSource)

orders = spark.read.format("ddmq").option("servers", "127.0.0.1:9713").option("topic", "orders").load()
order = f.from_json(orders.value.cast("string"), "region string, amount long")
sums = orders.select(order.alias("order")).groupBy("order.region").agg(f.sum("order.amount").alias("sum"))
sums.orderBy("region").show()

(
    sums.selectExpr("region as key", "to_json(struct(region, sum)) as value")
    .write.format("ddmq")
    .mode("append")
    .option("servers", "127.0.0.1:9613")
    .option("topic", "sums-by-region")
    .save()
)
spark.stop()
