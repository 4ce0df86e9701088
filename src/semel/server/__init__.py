"""The HTTP server: connections, a strict request parser, and the request handlers."""
