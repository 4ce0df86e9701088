"""What a Spark session needs: Java, Python, settings."""
