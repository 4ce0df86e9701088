"""Transactions: begin, decide the end, apply it, look them up."""
