"""The storage of data on disk: frames, segments, the index, the checkpoint, and recovery."""
