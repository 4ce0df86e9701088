"""The Spark engine, which runs each step as Spark jobs."""
