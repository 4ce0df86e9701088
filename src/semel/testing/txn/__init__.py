"""The transaction checker: records a history of transactions, and finds anomalies in it."""
