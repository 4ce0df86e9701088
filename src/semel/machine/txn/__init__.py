"""Transactions: decisions on their begin and end, `apply` for their events, lookups and views."""
