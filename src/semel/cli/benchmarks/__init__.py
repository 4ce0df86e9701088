"""What `semel bench` measures: the server over HTTP, beside its peers, on the same work."""
