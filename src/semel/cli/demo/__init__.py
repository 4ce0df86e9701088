"""The demo: exactly-once writes in spite of lost responses and killed processes, with Spark."""
