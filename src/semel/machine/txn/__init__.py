"""Transactions: begin, publish, decide the end, apply it, look them up."""
