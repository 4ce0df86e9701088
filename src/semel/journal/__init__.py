"""How data is stored on disk: frames, segments, the index, the checkpoint, and recovery."""
