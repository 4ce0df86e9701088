"""The storage on disk: frames, segments, the index, the checkpoint, and recovery."""
