"""The HTTP server: connections, a strict parser of requests, and the handlers of requests."""
