"""Other spellings of an address, most of which some server or proxy takes for the address itself.

`spellings` is used by the tests of routes and of rights: the server must either refuse a spelling,
or handle it as the route that it decides rights for.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

OTHER_HOST: Final = "other.example"
URL_BYTES: Final = 9_000  # more than the server accepts

# What can replace a slash.
_SLASHES: Final = (
    "//", "///", "/./", "/../", "/x/../", "/../x/", "/%2e/", "/%2E%2e/", "/x/%2e%2E/", "/.%2e/x/",
    "%2f", "%2F", "/%2f", "%2f/", "%252f", "\\", "/\\", "%5c", "/%5C..%5c", "%c0%af", "%e0%80%af",
    "%ef%bc%8f", "/%c0%ae%c0%ae/", "/;/", "/..;/", ";/", ";a=b/", "?/", "%3f/", "%3F", "#/",
    "%23/", "%00/", "/%00", "%09/", "%20/", " /", "\t/", "\x00/", "\xe9/", "+/", "%/", "%zz/",
    "%u002f", ":",
)  # fmt: skip
# What can follow an address.
_ENDS: Final = (
    "/", "//", "/.", "/./", "/..", "/../", "/../x", "/%2e", "/%2E%2e", "%2f", "%2F", "%252f", "\\",
    "%5c", ";", ";a=b", ";/", "?", "??", "?x", "?/../x", "?#", "%3f", "%3Fx", "#", "#x", "%23",
    "%00", "%00x", "\x00", "%0a", "%0d%0a", "%20", " ", "%09", ".", "%2e", "..", ".json", "~", "%",
    "%z", "+", "\xe9", "%c3%a9", "%ff", "*", "/*", "/{id}", "&a=b", "=", ":", "@",
)  # fmt: skip


def spellings(address: str, host: str = "localhost") -> Iterator[str]:
    """Yield the address and other spellings of it, as targets of a request. Each comes once.

    `address` begins with a slash. `host` is a name of the server. Those who send a target encode it
    as Latin-1, because some contain bytes that are not allowed there.
    """
    yield from dict.fromkeys(_all_spellings(address, host))


def _all_spellings(address: str, host: str) -> Iterator[str]:
    yield address
    for slash in _SLASHES:
        parts = address.split("/")
        for at in range(1, len(parts)):
            yield "/".join(parts[:at]) + slash + "/".join(parts[at:])
        yield address.replace("/", slash)
    yield from (address + end for end in _ENDS)
    yield address + "a" * URL_BYTES
    yield f"{address}/{'a/' * (URL_BYTES // 2)}"
    yield from _other_letters(address)
    yield from _other_forms(address, host)


def _other_letters(address: str) -> Iterator[str]:
    """Yield the address with its letters percent-encoded, encoded twice, or in upper case."""
    for encode in (_encoded, _encoded_twice, str.upper, _wide):
        yield from _each(address, "[a-z0-9]", encode)
        yield "".join([encode(each) if each.isalnum() else each for each in address])
    yield from _each(address, "[a-z]+", str.capitalize)


def _other_forms(address: str, host: str) -> Iterator[str]:
    """Yield the address in absolute form, and what looks like it."""
    yield f"http://{host}{address}"
    yield f"HTTP://{host.upper()}{address}"
    yield f"https://{host}{address}"
    yield f"http://{host}:1{address}"
    yield f"http://{host}/{address}"
    yield f"http://{host}/x/..{address}"
    yield f"http://{host}{address}/"
    yield f"http://{host}{address}?x"
    yield f"http://{host}%2f{address[1:]}"
    yield f"http://{host}\\{address[1:]}"
    yield f"http://{host}{address}#x"
    yield f"http://{host}#{address}"
    yield f"http://{host}?{address}"
    yield f"http://{OTHER_HOST}{address}"
    yield f"http://{OTHER_HOST}:80{address}"
    yield f"http://{host}@{OTHER_HOST}{address}"
    yield f"http://{OTHER_HOST}@{host}{address}"
    yield f"http:{address}"
    yield f"http:/{address}"
    yield f"http://{address}"
    yield f"ftp://{host}{address}"
    yield f"//{host}{address}"
    yield f"//{OTHER_HOST}{address}"
    yield f"{host}{address}"
    yield address[1:]
    yield f"/http://{host}{address}"
    yield f"/{host}{address}"
    yield f"?{address}"
    yield f"*{address}"
    yield "*"


def _each(address: str, pattern: str, change: Callable[[str], str]) -> Iterator[str]:
    """Yield the address once for each match of the pattern, with only this match changed."""
    for found in re.finditer(pattern, address):
        yield address[: found.start()] + change(found[0]) + address[found.end() :]


def _encoded(letter: str) -> str:
    return f"%{ord(letter):02x}"


def _encoded_twice(letter: str) -> str:
    return f"%25{ord(letter):02x}"


def _wide(letter: str) -> str:
    """Return the full-width form of a letter, which some programs take for the letter."""
    return "".join([f"%{byte:02x}" for byte in chr(ord(letter) + 0xFEE0).encode()])
