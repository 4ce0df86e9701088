"""A graph of processors: declaration, validation, drawing."""
