"""Long runs: kills, crash images, damage and power cuts by the hour."""
