"""Graphs of processors: declaration, validation and drawing."""
