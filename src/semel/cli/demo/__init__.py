"""The demo: exactly once through lost responses, kills and Spark."""
