"""The HTTP protocol: turns requests into commands, and outcomes into responses. It does no I/O.

Request headers are a mapping from lower-case names to values. Header bytes are decoded as Latin-1.
The values of a repeated header are joined with ", ", and its name is in the set `repeated`.
Paths and queries are still percent-encoded. A parser returns a command or a Problem.

    paths           parses and makes URLs: stream paths and queries
    routes          the table of all routes; finds the route of a request
    headers         parses header values
    requests        requests for streams
    responses       the responses to these requests
    producers, transactions, commits, groups
                    requests and responses of the other resources; sinks are in `commits`
    schema          the JSON bodies of the other resources, as structs; the client uses them too
    bodies          the batch format and the frames format
    json_mode, json_depth
                    split the JSON body of an append into messages, and check its nesting
    documents       reads other JSON bodies
    sse             server-sent events
    problems        the JSON bodies of HTTP errors, and the class of the refusal table's entries
    refusal_table   the status, the message and the advice for each refusal; the entries for
                    transactions are in `refusal_table_txn`
    rendering       the class Response; turns an outcome into a status or a problem, and adds the
                    headers that all responses have
"""
