"""The Spark engine: it runs each step as a Spark job."""
