"""The demo: exactly-once writes by a producer and by Spark, while processes are killed."""
