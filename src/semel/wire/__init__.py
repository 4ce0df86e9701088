"""HTTP in, commands out; outcomes in, HTTP out. Pure: bytes and values only.

Requests come as text, bytes above ASCII read as Latin-1: headers are a mapping of lower-case names
to values, a value that came twice is joined with ", ", and `repeated` holds its name. Paths and
queries are still percent-encoded.

    paths.stream_path(raw) -> str | Problem                       raw: "/v1/stream/a/b"
    paths.stream_url(origin, path) -> str                         for Location
    paths.origin_of(host, scheme="http") -> str | None            from the Host header

    requests.parse_put(path, headers, repeated, body, *, now_ms, incarnation, source_type=None)
        -> Create | Problem
    requests.parse_post(path, headers, repeated, body, *, now_ms, is_strict=False)
        -> Append | Problem
    requests.plan_post(path, headers, repeated, *, is_strict=False) -> AppendPlan | Problem
    requests.append_of(plan, body, *, now_ms, seq=b"") -> Append | Problem
    queries.parse_get(query, headers) -> ReadRequest | Problem
    queries.parse_delete(path, query, *, now_ms) -> Delete | Trim | Problem

    json_mode.split_json(body) -> Batch | str | None              str: the error; None: `[]`

    responses.put_response(outcome, *, location) -> Response
    responses.post_response(outcome, command, *, is_x=False, window=...) -> Response
    responses.append_lines(outcome) -> tuple[int, bytes]          the common case of post_response
    responses.delete_response(outcome) -> Response
    responses.head_response(facts) -> Response                    facts: StreamFacts
    responses.read_response(facts, request, slices, *, start, next_offset, cursor=None) -> Response
    responses.empty_poll_response(facts, *, next_offset, cursor) -> Response      204
    responses.sse_response(facts) -> Response                     the head; events follow
    responses.options_response() -> Response
    responses.outcome_response(outcome) -> Response               any refusal, any route
    responses.problem_response(problem) -> Response
    responses.json_response(status, value) -> Response
    rendering.Response: status, headers, body, is_streamed, is_to_gzip
    rendering.CONSTANT_LINES: str                                 belong on every answer
    rendering.compress(response) -> Response                      if response.is_to_gzip

    sse.SseEncoder(content_type, start): .next_offset
        .data(slices, *, next_offset, is_final=False) -> bytes    b"": nothing to send
    sse.control_event(next_offset, *, cursor=None, is_up_to_date=False, is_closed=False) -> bytes
    cursors.next_cursor(given, *, now_ms, jitter_s) -> int        jitter_s: 1..3600
    bodies: to_json_array, to_bytes, encode_batch, decode_batch, encode_frames, decode_frames
    pieces.Piece: .messages(), .keys(), .headers(), .timestamps(), .producer
    etags: etag_of, is_match
"""
