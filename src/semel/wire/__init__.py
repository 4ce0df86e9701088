"""The HTTP protocol: requests become commands, outcomes become responses. There is no I/O here.

The headers of a request are a mapping of lower-case names to values. Their bytes are read as
Latin-1. The values of a repeated header are joined with ", ", and its name is in `repeated`. Paths
and queries are still percent-encoded. A parser returns a command or a Problem.

    paths           addresses: the paths of streams, and queries
    headers         the values of headers; the tags of producers and transactions
    requests        requests on streams
    responses       the responses to requests on streams
    producers, transactions, commits, groups
                    requests and responses of the other resources; sinks are in `commits`
    schema          their JSON bodies, as structs that the client uses, too
    bodies          the formats of batches and of frames
    json_mode       JSON bodies: appends, split into messages, and documents
    sse             server-sent events
    problems        the JSON documents of HTTP errors, and the entries of the refusal table
    refusal_table   every refusal: code, status, message, the client's error, and advice; the
                    entries about transactions are in `refusal_table_txn`
    rendering       the status or the problem of an outcome; responses as values, and the headers
                    that all of them have
"""
