"""What a Spark session needs: Java, a Python that can run its tasks, and settings."""
