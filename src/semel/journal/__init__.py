"""Bytes on disk: frames, segments, the checkpoint, and coming back from a crash."""
