"""The HTTP server: connections with a strict parser, and the routes that handle requests."""
