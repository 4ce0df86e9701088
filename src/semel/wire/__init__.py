"""The HTTP protocol: turns requests into commands, and outcomes into responses. It does no I/O.

The headers of a request are a mapping from lower-case names to values. Header bytes are decoded as
Latin-1. If a header is repeated, its values are joined with ", ", and its name is in the set
`repeated`. Paths and queries are still percent-encoded. A parser returns a command or a Problem.

    paths           parses and makes URLs: the paths of streams, and queries
    headers         parses header values, such as those that identify a producer
    requests        requests on streams
    responses       the responses to requests on streams
    producers, transactions, commits, groups
                    requests and responses of the other resources; sinks are in `commits`
    schema          the JSON bodies of the other resources, as structs; the client uses them too
    bodies          the batch format and the frames format
    json_mode       JSON bodies: splits appends into messages, and reads documents
    sse             server-sent events
    problems        the JSON documents of HTTP errors, and the class of the refusal table's entries
    refusal_table   every refusal: code, status, message, the client's error, and advice; the
                    entries about transactions are in `refusal_table_txn`
    rendering       defines the class Response, turns an outcome into a status or a problem, and
                    adds the headers that all responses have
"""
