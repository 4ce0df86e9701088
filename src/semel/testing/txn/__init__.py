"""The transaction checker: recorded histories, order, cycles and positions."""
