"""The checker of transactions: history, order, cycles, positions."""
