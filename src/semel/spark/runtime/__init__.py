"""The environment of a Spark session: Java, the Python of tasks, and settings."""
