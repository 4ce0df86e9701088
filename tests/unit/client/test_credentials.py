"""The credentials file and the choice of a token."""

import os
import pickle
import stat
import tomllib
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import semel
from semel.client.credentials import (
    Context,
    Credentials,
    CredentialsError,
    CredentialsUnreadable,
    Secret,
    TokenFile,
    checked_token,
    chosen_token,
    context,
    credentials_path,
    environment_token,
    find_context,
    load_credentials,
    parse_credentials,
    print_credentials,
    public_part,
    save_credentials,
    without_secrets,
)

PUBLIC, HIDDEN = "semel_abcDEF012345_", "s3cret-Part_of-the-token-0123456789abcdefgh"
TOKEN = PUBLIC + HIDDEN
PROD = Context(url="https://semel.example", token=TOKEN, ca="/etc/ca.pem")
DEV = Context(url="http://127.0.0.1:4437/base", token_file="/run/token")
FILE = f"""
current = "prod"

[contexts.prod]
url = "https://semel.example"
token = "{TOKEN}"
ca = "/etc/ca.pem"

[contexts.dev]
url = "http://127.0.0.1:4437/base"
token_file = "/run/token"
"""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---- the text of the file ------------------------------------------------------------------------


def test_the_file_has_contexts_and_a_current_one() -> None:
    found = parse_credentials(FILE, "f")
    assert found == Credentials("prod", {"prod": PROD, "dev": DEV})
    assert parse_credentials(print_credentials(found), "f") == found
    assert parse_credentials("", "f") == Credentials()
    assert parse_credentials(print_credentials(Credentials()), "f") == Credentials()


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
TOKENS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)


@given(st.dictionaries(NAMES, st.tuples(TOKENS, TEXTS), max_size=3), st.booleans())
def test_what_is_printed_is_parsed_again(
    given: dict[str, tuple[str, str]], has_current: bool
) -> None:
    contexts = {
        name: Context(url=f"https://{index}.example", token=token, ca=text)
        for index, (name, (token, text)) in enumerate(given.items())
    }
    current = next(iter(contexts), None) if has_current else None
    credentials = Credentials(current, contexts)
    text = print_credentials(credentials)
    assert set(tomllib.loads(text).get("contexts", {})) == set(given)
    assert parse_credentials(text, "f") == credentials


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f'token = "{TOKEN}', "not valid TOML"),
        (f"{TOKEN} = {TOKEN}", "not valid TOML"),
        (f'token = "{TOKEN}"', "the key 'token' is unknown"),
        (f'{TOKEN} = "x"', "is unknown"),
        (f"current = 7\n{FILE.replace('current', 'x')}", "unknown"),
        ("current = 7", "'current' must be the name"),
        ('contexts = "x"', "'contexts' must have tables"),
        ("contexts.prod = 7", "the context 'prod' is invalid"),
        ('current = "prod"', "'current' is 'prod', but the file has no such context"),
        (FILE.replace("token =", "tokn ="), "the context 'prod' is invalid.*unknown field `tokn`"),
        (FILE.replace('url = "https', 'token_file = "x"\nurl = "https'), "both 'token' and"),
        (FILE.replace("https://semel.example", "semel.example"), "not the address of a server"),
        (FILE.replace("https://", f"https://x:{TOKEN}@"), "must not contain credentials"),
        (FILE.replace('url = "https', '# "https', 1), "missing required field `url`"),
        (FILE.replace(TOKEN, f"{TOKEN} {TOKEN}"), "the token of the context 'prod'"),
        (FILE.replace(TOKEN, ""), "the token of the context 'prod' is empty"),
        (FILE.replace(f'"{TOKEN}"', f'["{TOKEN}"]'), "Expected `str | null`, got `array`"),
        (FILE.replace("contexts.prod", 'contexts."a b"'), "'a b' is not a name for a context"),
        (FILE.replace("contexts.prod", f"contexts.{TOKEN}x{TOKEN}"), "not a name for a context"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_without_its_token(
    text: str, reason: str
) -> None:
    with pytest.raises(CredentialsError, match=reason) as refused:
        parse_credentials(text, "/home/ann/credentials.toml")
    assert str(refused.value).startswith("/home/ann/credentials.toml: ")
    assert HIDDEN not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_a_context_is_found_by_name_or_because_it_is_the_current_one() -> None:
    credentials = Credentials("prod", {"prod": PROD, "dev": DEV})
    assert find_context(credentials, None, "f") is PROD
    assert find_context(credentials, "dev", "f") is DEV
    with pytest.raises(CredentialsError, match=r"f: there is no context 'x'; .* prod, dev"):
        find_context(credentials, "x", "f")
    with pytest.raises(CredentialsError, match=r"no context is the current one; .* dev"):
        find_context(Credentials(None, {"dev": DEV}), None, "f")
    with pytest.raises(CredentialsError, match="none; add one with `semel context add`"):
        find_context(Credentials(), None, "f")


# ---- the file ------------------------------------------------------------------------------------


def test_the_file_is_private_and_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new/semel/credentials.toml"
    save_credentials(Credentials("dev", {"dev": DEV}), path)
    assert (mode_of(path), mode_of(path.parent)) == (0o600, 0o700)
    before = path.stat().st_ino
    with path.open() as reader:  # has the old file, to its end
        save_credentials(Credentials("prod", {"prod": PROD}), path)
        assert parse_credentials(reader.read(), "f") == Credentials("dev", {"dev": DEV})
    assert path.stat().st_ino != before
    assert load_credentials(path) == Credentials("prod", {"prod": PROD})
    assert os.listdir(path.parent) == [path.name]


def test_a_file_that_others_could_read_is_private_after_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "credentials.toml"
    path.write_text(FILE)
    path.chmod(0o664)
    with pytest.warns(UserWarning, match=r"other users may read .* \(mode 0664\); run: chmod 600"):
        credentials = load_credentials(path)
    save_credentials(credentials, path)
    with warnings.catch_warnings(action="error"):
        assert load_credentials(path) == credentials


@pytest.mark.parametrize(("mode", "count"), [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1)])
def test_a_file_that_others_may_read_is_named_but_used(
    tmp_path: Path, mode: int, count: int
) -> None:
    path = tmp_path / "credentials.toml"
    path.write_text(FILE)
    path.chmod(mode)
    said: list[str] = []
    assert load_credentials(path, said.append).current == "prod"
    assert len(said) == count
    assert not any(HIDDEN in text for text in said)


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "dotfiles", tmp_path / "credentials.toml"
    link.symlink_to(target)
    save_credentials(Credentials("dev", {"dev": DEV}), link)
    assert link.is_symlink()
    assert load_credentials(target).current == "dev"


def test_a_missing_file_is_empty_and_an_unreadable_one_is_not(tmp_path: Path) -> None:
    assert load_credentials(tmp_path / "none") == Credentials()
    (tmp_path / "file").touch()
    assert load_credentials(tmp_path / "file/none") == Credentials()
    with pytest.raises(CredentialsUnreadable, match="cannot be read: Is a directory"):
        load_credentials(tmp_path)
    (tmp_path / "latin").write_bytes(b"\xff")
    (tmp_path / "latin").chmod(0o600)
    with pytest.raises(CredentialsError, match="is not UTF-8"):
        load_credentials(tmp_path / "latin")


def test_a_file_that_cannot_be_written_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(CredentialsError, match="cannot be written: Is a directory"):
        save_credentials(Credentials("prod", {"prod": PROD}), tmp_path / "folder")
    (tmp_path / "file").touch()
    with pytest.raises(CredentialsError, match="cannot be written"):
        save_credentials(Credentials(), tmp_path / "file/credentials.toml")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_the_path_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_CREDENTIALS", "/x/y.toml")
    assert credentials_path() == Path("/x/y.toml")
    monkeypatch.setenv("SEMEL_CREDENTIALS", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/conf")
    assert credentials_path() == Path("/conf/semel/credentials.toml")
    monkeypatch.setenv("HOME", "/home/ann")
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", ignored)
        assert credentials_path() == Path("/home/ann/.config/semel/credentials.toml")


def test_without_a_home_directory_the_path_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("SEMEL_CREDENTIALS", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lost)
    with pytest.raises(CredentialsUnreadable, match="set SEMEL_CREDENTIALS"):
        credentials_path()


# ---- tokens --------------------------------------------------------------------------------------


def test_a_token_file_is_read_for_each_call(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = TokenFile(str(path))
    for text in ("a\n", "  b\r\n", TOKEN):
        path.write_text(text)
        assert token() == text.strip()
        assert repr(token()) == "'...'"
    again = pickle.loads(pickle.dumps(token))
    assert (again(), hash(again)) == (TOKEN, hash(token))


@pytest.mark.parametrize(
    "data",
    [b"", b" \n", b"a b", b"a\nb", b"a\0b", b"\xff", "ä".encode(), b"x" * 20_000],
)
def test_a_file_without_one_token_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(data)
    with pytest.raises(CredentialsError, match=f"the token file {path} ") as refused:
        TokenFile(str(path))()
    assert data.decode("latin-1").strip("\n ") not in str(refused.value) or not data.strip()


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="none cannot be read: No such file"):
        TokenFile(str(tmp_path / "none"))()


def test_the_token_of_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    def function() -> str:
        return "f"

    assert environment_token() is None
    assert chosen_token(None, None) is None
    monkeypatch.setenv("SEMEL_TOKEN", f"{TOKEN}\n")
    assert chosen_token(None, {"X": "y"}) == TOKEN
    assert chosen_token(None, {"AUTHORIZATION": "Basic x"}) is None
    assert chosen_token("", None) is None
    assert chosen_token("own", None) == "own"
    assert chosen_token(function, None) is function
    monkeypatch.setenv("SEMEL_TOKEN", " ")
    assert environment_token() is None
    monkeypatch.setenv("SEMEL_TOKEN", f"{TOKEN} x")
    with pytest.raises(CredentialsError, match="the variable SEMEL_TOKEN") as refused:
        environment_token()
    assert HIDDEN not in str(refused.value)


def test_only_the_public_part_of_a_token_is_shown() -> None:
    assert public_part(TOKEN) == f"{PUBLIC}..."
    for other in ("eyJhbGciOi.x.y", "secret", f"x{TOKEN}", "semel_short_x"):
        assert public_part(other) == "..."
    assert without_secrets(f"a {TOKEN}, {TOKEN}.") == f"a {PUBLIC}..., {PUBLIC}...."
    assert str(checked_token(TOKEN.encode(), "t")) == TOKEN


def test_nothing_shows_a_token(tmp_path: Path) -> None:
    shown = [
        PROD,
        Credentials("prod", {"prod": PROD}),
        Secret(TOKEN),
        semel.Client("http://127.0.0.1:1", token=TOKEN).transport,
    ]
    assert not any(HIDDEN in repr(it) or HIDDEN in f"{it!r:.500}" for it in shown)
    assert PROD.shown_token == f"{PUBLIC}..."
    assert DEV.shown_token == "file /run/token"


# ---- semel.context -------------------------------------------------------------------------------


def test_the_options_of_a_client_come_from_a_context(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "credentials.toml"
    bare = Context(url="http://127.0.0.1:1")
    save_credentials(Credentials("prod", {"prod": PROD, "dev": DEV, "bare": bare}), path)
    monkeypatch.setenv("SEMEL_CREDENTIALS", str(path))
    assert semel.context is context
    found = context()
    assert found == {"url": PROD.url, "token": TOKEN, "tls": "/etc/ca.pem"}
    assert HIDDEN not in repr(found)
    assert context("dev") == {"url": DEV.url, "token": TokenFile("/run/token")}
    monkeypatch.setenv("SEMEL_CONTEXT", "bare")
    assert context() == {"url": bare.url}
    assert context("prod") == found
    with semel.Client(**context()) as client:
        assert client.url == bare.url
    with pytest.raises(CredentialsError, match=f"{path}: there is no context 'x'"):
        context("x")
