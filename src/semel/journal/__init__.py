"""Bytes on disk: frames, segments, the index, the checkpoint, and recovery after a crash."""
