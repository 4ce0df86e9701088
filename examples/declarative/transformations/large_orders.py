"""A declarative pipeline: one flow from a semel stream into a semel stream, exactly once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
URL = str(spark.conf.get("example.url"))

dp.create_sink("large", "semel", {"url": URL, "stream": "large"})


@dp.append_flow(target="large")
def large_orders() -> DataFrame:
    """Pick the orders above 350."""
    orders = spark.readStream.format("semel").option("url", URL).option("stream", "orders")
    return orders.schema("id long, total double").load().where("total > 350")
