"""The HTTP protocol: requests become commands, outcomes become responses. Pure: values only.

Requests come as text: headers are a mapping of lower-case names to values, with bytes above ASCII
read as Latin-1; the values of a repeated header are joined with ", ", and `repeated` holds its
name. Paths and queries are still percent-encoded. A parser returns a command or a Problem.

    paths           addresses: the paths of streams, and queries
    headers         the values of headers; the tags of producers and transactions
    requests        requests on streams
    responses       the responses to requests on streams
    producers, transactions, commits, groups
                    requests and responses of the other resources; sinks are in `commits`
    schema          the JSON of those, as structs that the client uses too
    bodies          the formats of batches and of frames
    json_mode       JSON bodies: messages, split without building objects, and documents
    sse             server-sent events
    problems        what a refusal is as a value
    refusal_table   every refusal: code, status, message, the client's error, and advice
    rendering       the status or the problem of an outcome; responses as values, and the headers
                    that all of them have
"""
