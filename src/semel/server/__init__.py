"""The HTTP server: strict connections below, routes above."""
