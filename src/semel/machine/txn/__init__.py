"""Transactions: how they begin and end, how their events are applied, and how they are viewed."""
