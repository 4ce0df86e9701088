"""Scopes and rights: what they grant, what they contain, and how they are written as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.model import rights
from semel.model.rights import (
    ADMIN,
    ALL_RIGHTS,
    CLUSTER,
    CLUSTER_RIGHTS,
    CREATE,
    DELETE,
    DESCRIBE,
    GROUP,
    IDEMPOTENT,
    KINDS,
    NEVER,
    POLICY,
    READ,
    RIGHTS,
    STREAM,
    TOPIC,
    TRANSACTIONAL,
    WRITE,
    Scope,
    dead_letters_of,
    group_of,
    is_granted,
    is_of_server,
    is_within,
    make_caller,
    parse_scope,
    print_scope,
    replays_of,
    retries_of,
    scope_problem,
    writes_as_group,
    writes_somewhere,
)


def scopes(*texts: str) -> tuple[Scope, ...]:
    return tuple(map(parse_scope, texts))


# ---- what a scope grants -------------------------------------------------------------------------


# R1
def test_nothing_is_granted_that_no_scope_grants() -> None:
    granted = scopes("stream:orders/*:read", "group:g:write")
    assert is_granted(granted, STREAM, "orders/eu", READ)
    assert is_granted(granted, GROUP, "g", WRITE)
    for kind, name, right in (
        (STREAM, "orders/eu", WRITE),
        (STREAM, "orders", READ),
        (STREAM, "g", WRITE),
        (GROUP, "orders/eu", READ),
        (GROUP, "g2", WRITE),
        (GROUP, "", WRITE),
        (CLUSTER, "", DESCRIBE),
    ):
        assert not is_granted(granted, kind, name, right), (kind, name, right)
    assert not is_granted((), STREAM, "s", DESCRIBE)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != CLUSTER])
@pytest.mark.parametrize("right", RIGHTS)
def test_a_right_on_a_thing_includes_describe_and_nothing_else(kind: str, right: str) -> None:
    granted = (Scope(kind, "a", is_prefix=False, rights=(right,)),)
    held = {other for other in RIGHTS if is_granted(granted, kind, "a", other)}
    assert held == (set(RIGHTS) if right == ADMIN else {right, DESCRIBE})  # R2


# R2
def test_admin_on_the_cluster_includes_everything() -> None:
    for kind in KINDS:
        for right in (*RIGHTS, *CLUSTER_RIGHTS):
            assert is_granted(ALL_RIGHTS, kind, "anything", right)
            assert not is_granted(scopes("cluster:describe"), kind, "anything", right)


@pytest.mark.parametrize(
    ("prefix", "name", "is_covered"),
    [
        ("", "a", True),
        ("orders", "orders", True),
        ("orders", "orders2", True),  # a prefix of the text, not of segments
        ("orders/", "orders/eu", True),
        ("orders/", "orders", False),
        ("orders/", "order", False),
    ],
)
def test_a_prefix_is_one_of_the_text(prefix: str, name: str, is_covered: bool) -> None:
    granted = (Scope(STREAM, prefix, is_prefix=True, rights=(READ,)),)
    assert is_granted(granted, STREAM, name, READ) is is_covered


# ---- scopes within scopes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inner", "outer", "is_inside"),
    [
        ("stream:a:read", "stream:a:read", True),
        ("stream:a:read", "stream:a:read,write", True),
        ("stream:a:read,write", "stream:a:read", False),
        ("stream:a:read", "stream:b:read", False),
        ("stream:a:read", "group:a:read", False),
        ("stream:a/b:read", "stream:a/*:read", True),
        ("stream:a/b/*:read", "stream:a/*:read", True),
        ("stream:a/*:read", "stream:a/b/*:read", False),
        ("stream:a/*:read", "stream:a/:read", False),
        ("stream:*:read", "stream:a*:read", False),
        ("stream:a:admin", "stream:a:read,write,create,delete,describe", False),
        ("stream:a:create,delete", "stream:a:admin", True),
        ("stream:a:describe", "stream:a:write", True),
        ("stream:a:describe", "stream:*:write", True),
        ("cluster:IdempotentWrite", "cluster:admin", True),
        ("cluster:IdempotentWrite", "cluster:TransactionalWrite", False),
        ("cluster:admin", "stream:*:admin", False),
        ("policy:*:delete", "cluster:admin", True),
    ],
)
def test_a_scope_is_within_others_only_if_they_grant_all_of_it(
    inner: str, outer: str, is_inside: bool
) -> None:
    assert is_within(scopes(inner), scopes(outer)) is is_inside
    assert is_within(scopes(inner), scopes("topic:x:read", outer)) is is_inside


def test_every_scope_must_be_within_the_others() -> None:
    outer = scopes("stream:a:read", "stream:b:write")
    assert is_within(scopes("stream:a:read", "stream:b:write"), outer)
    assert not is_within(scopes("stream:a:read", "stream:b:read"), outer)
    assert not is_within(scopes("stream:a:read"), ())
    assert is_within((), ())


NAMES = st.text("ab/", max_size=3)
RIGHT_SETS = st.lists(st.sampled_from(RIGHTS), min_size=1, unique=True).map(tuple)
SCOPES = st.builds(Scope, st.sampled_from([STREAM, GROUP]), NAMES, st.booleans(), RIGHT_SETS)


@given(
    st.lists(SCOPES, max_size=3).map(tuple),
    st.lists(SCOPES, max_size=3).map(tuple),
    st.sampled_from([STREAM, GROUP]),
    NAMES,
    st.sampled_from(RIGHTS),
)
def test_who_has_scopes_within_others_never_has_more(
    inner: tuple[Scope, ...], outer: tuple[Scope, ...], kind: str, name: str, right: str
) -> None:
    if is_within(inner, outer) and is_granted(inner, kind, name, right):
        assert is_granted(outer, kind, name, right)


# ---- callers -------------------------------------------------------------------------------------


def test_a_caller_may_do_what_its_scopes_grant() -> None:
    caller = make_caller("till", scopes("stream:a:write"), version=3, expires_ms=9, token="t")
    assert (caller.version, caller.expires_ms, caller.token) == (3, 9, "t")
    assert caller.may(STREAM, "a", WRITE)
    assert not caller.may(STREAM, "a", READ)
    assert not caller.is_admin
    root = make_caller("root", ALL_RIGHTS)
    assert root.may(POLICY, "", DELETE)
    assert (root.is_admin, root.expires_ms, root.token) == (True, NEVER, None)


def test_a_right_on_one_thing_is_none_on_all_whose_names_begin_as_its_name_does() -> None:
    one, below = scopes("stream:a:read"), scopes("stream:a/*:read")
    assert not make_caller("p", one).may_all(STREAM, "a", READ)
    assert make_caller("p", below).may_all(STREAM, "a/", READ)
    assert make_caller("p", below).may_all(STREAM, "a/b", READ)
    assert not make_caller("p", (*one, *below)).may_all(STREAM, "a", READ)
    assert not make_caller("p", below).may_all(STREAM, "a/", WRITE)
    assert not make_caller("p", below).may_all(TOPIC, "a/", READ)
    assert make_caller("root", ALL_RIGHTS).may_all(STREAM, "", READ)
    assert not make_caller("p", scopes("stream:*:read")).may_all(STREAM, "__semel/", READ)


def test_the_streams_of_the_server_are_for_admins_of_the_cluster_only() -> None:
    for path in ("__semel/audit", "__semel/"):
        assert not make_caller("p", scopes("stream:*:admin")).may(STREAM, path, READ)
        assert not make_caller("p", scopes(f"stream:{path}:admin")).may(STREAM, path, DESCRIBE)
        assert make_caller("root", ALL_RIGHTS).may(STREAM, path, READ)
    assert make_caller("p", scopes("stream:*:read")).may(STREAM, "__semel2/a", READ)
    assert make_caller("p", scopes("policy:*:write")).may(POLICY, "__semel/audit", WRITE)


# R3
@pytest.mark.parametrize(
    ("scope", "is_lax", "is_strict"),
    [
        ("stream:a:write", True, False),
        ("stream:a:admin", True, False),
        ("topic:a:write", True, False),
        ("stream:a:read,create,delete", False, False),
        ("group:g:write", False, False),
        ("cluster:IdempotentWrite", False, True),
        ("cluster:TransactionalWrite", False, False),
        ("cluster:admin", True, True),
    ],
)
def test_a_writer_is_idempotent_unless_rights_are_strict(
    scope: str, is_lax: bool, is_strict: bool
) -> None:
    granted = scopes(scope)
    assert make_caller("p", granted).is_idempotent is is_lax
    assert make_caller("p", granted, is_strict=True).is_idempotent is is_strict
    assert writes_somewhere(granted) is (is_lax and scope != "cluster:admin")


# R3
@pytest.mark.parametrize(
    ("scope", "is_worker"),
    [
        ("group:g:write", True),
        ("group:g*:admin", True),
        ("group:g:read,delete", False),
        ("stream:*:write", False),
    ],
)
def test_who_may_write_as_a_group_is_a_worker(scope: str, is_worker: bool) -> None:
    assert writes_as_group(scopes(scope)) is is_worker


# R7
def test_the_retries_of_a_group_are_deleted_with_the_right_to_delete_it() -> None:
    deleter = make_caller("p", scopes("group:g:delete"))
    assert deleter.may(STREAM, retries_of("g"), DELETE)
    assert not deleter.may(STREAM, retries_of("g2"), DELETE)
    assert not deleter.may(STREAM, dead_letters_of("g"), DELETE)
    assert make_caller("p", scopes("group:g:write")).may(STREAM, retries_of("g"), DELETE)
    assert not make_caller("p", scopes("group:g:read")).may(STREAM, retries_of("g"), DELETE)


# ---- scopes as text ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("stream:orders/*:read,write", Scope(STREAM, "orders/", True, (READ, WRITE))),
        ("stream:orders: write , read ,", Scope(STREAM, "orders", False, (READ, WRITE))),
        ("stream:*:create", Scope(STREAM, "", True, (CREATE,))),
        ("stream:a:b:delete", Scope(STREAM, "a:b", False, (DELETE,))),
        ("group:**:read", Scope(GROUP, "*", True, (READ,))),
        ("cluster:admin", Scope(CLUSTER, "", False, (ADMIN,))),
        ("cluster:*:admin", Scope(CLUSTER, "", False, (ADMIN,))),
        (
            "cluster:TransactionalWrite,IdempotentWrite",
            Scope(CLUSTER, "", False, (IDEMPOTENT, TRANSACTIONAL)),
        ),
    ],
)
def test_a_text_names_a_scope(text: str, scope: Scope) -> None:
    assert parse_scope(text) == scope
    assert parse_scope(print_scope(scope)) == scope


@given(st.sampled_from([STREAM, TOPIC, POLICY]), st.text(min_size=1), st.booleans(), RIGHT_SETS)
def test_a_printed_scope_is_read_back(
    kind: str, name: str, is_prefix: bool, granted: tuple[str, ...]
) -> None:
    scope = Scope(kind, name, is_prefix or name.endswith("*"), tuple(sorted(granted)))
    if scope.is_prefix and not is_prefix:  # a name that ends with * can only be written as a prefix
        scope = Scope(kind, name[:-1], True, scope.rights)
    assert parse_scope(print_scope(scope)) == scope


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "such as stream:orders/*:read,write"),
        ("stream", "such as stream:orders/*:read,write"),
        ("stream:read", "such as stream:orders/*:read,write"),
        ("streams:a:read", "'streams' is not a kind; the kinds are stream, topic"),
        ("stream:a:reed", "'reed' is not a right on a stream; those are read, write"),
        ("stream:a:IdempotentWrite", "'IdempotentWrite' is not a right on a stream"),
        ("cluster:write", "'write' is not a right on a cluster; those are describe, admin"),
        ("stream:a:", "a scope needs at least one right; those on a stream are read"),
        ("cluster:", "a scope needs at least one right; those on a cluster are describe"),
        ("cluster:x:admin", "the cluster has no name; write cluster:admin"),
        ("stream::read", "the scope has no name; write stream:*:read for every stream"),
    ],
)
def test_a_text_that_is_no_scope_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="is not a scope") as refused:
        parse_scope(text)
    assert repr(text) in str(refused.value)
    assert reason in str(refused.value)


def test_a_name_that_ends_with_a_star_is_invalid_because_it_looks_like_a_prefix() -> None:
    problem = scope_problem(Scope(STREAM, "a*", False, (READ,)))
    assert problem is not None
    assert "write a prefix instead" in problem
    assert scope_problem(Scope(STREAM, "a*", True, (READ,))) is None
    assert scope_problem(Scope(STREAM, "a*b", False, (READ,))) is None


def test_the_cluster_is_no_prefix() -> None:
    assert scope_problem(Scope(CLUSTER, "", True, (ADMIN,))) == (
        "the cluster has no name; write cluster:admin"
    )
    assert scope_problem(ALL_RIGHTS[0]) is None


def test_every_right_has_one_name() -> None:
    assert len({*rights.RIGHTS, *rights.CLUSTER_RIGHTS}) == 8


# ---- what belongs to a group ---------------------------------------------------------------------

GROUP_NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@given(GROUP_NAMES)
def test_the_streams_of_a_group_are_found_by_its_name_and_back(group: str) -> None:
    for path in (dead_letters_of(group), retries_of(group)):
        assert path.startswith("__semel/")
        assert path.count("/") == 2
        assert group_of(path) == group
    assert group_of(replays_of(group)) == group


@pytest.mark.parametrize(
    "path",
    ["orders", "__semel/audit", "__semel/dead/", "__semel/dead/a/b", "__semel/dead/a%2fb"],
)
def test_a_name_that_is_written_in_another_way_belongs_to_no_group(path: str) -> None:
    assert group_of(path) is None


def test_a_right_on_a_group_holds_for_what_belongs_to_it() -> None:
    reader = make_caller("r", scopes("group:g:read"))
    writer = make_caller("w", scopes("group:g:write"))
    everyone = make_caller("e", scopes("stream:*:read,write,create", "group:*:read"))
    root = make_caller("a", ALL_RIGHTS)
    for path in ("__semel/dead/g", "__semel/retry/g"):
        assert reader.may(STREAM, path, READ)
        assert reader.may(STREAM, path, DESCRIBE)
        assert not reader.may(STREAM, path, WRITE)
        assert all(writer.may(STREAM, path, right) for right in (CREATE, WRITE, DELETE))
        assert everyone.may(STREAM, path, READ)
        assert not everyone.may(STREAM, path, CREATE)
        assert root.may(STREAM, path, ADMIN)
    assert writer.may(GROUP, "__semel/replay/g", WRITE)
    assert not reader.may(GROUP, "__semel/replay/g", WRITE)
    assert not writer.may(STREAM, "__semel/dead/h", WRITE)


def test_other_reserved_streams_are_for_admins_only() -> None:
    everyone = make_caller("e", scopes("stream:*:read,write", "group:*:write"))
    assert not everyone.may(STREAM, "__semel/audit", READ)
    assert is_of_server("__semel/audit")
    assert not is_of_server("__semel/dead/g")
    assert not is_of_server("audit")
    assert everyone.may(GROUP, "__semel/audit", WRITE)
