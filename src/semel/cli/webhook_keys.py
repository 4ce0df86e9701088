"""`semel webhook-key`: the keys that sign webhooks, on the machine of the server."""

import os
from collections.abc import Callable
from typing import Any, Final

import click

from semel.broker.settings import SystemClock
from semel.cli.output import EXIT_NO_INPUT, ChangingCommand, CommandRefused, print_facts, report
from semel.cli.serve_webhooks import key_file
from semel.server.webhook_keys import RETIRED_SECONDS, BadWebhookKeys, WebhookKeys
from semel.version import install_advice
from semel.wire.headers import print_instant
from semel.wire.webhook_signatures import kid_of, to_base64url

_NEXT: Final = "send SIGHUP to the server, so that it signs with the new key"


def _file_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs."),
        click.option(
            "--webhook-key",
            "name",
            metavar="FILE",
            envvar="SEMEL_WEBHOOK_KEY",
            show_envvar=True,
            help="The file with the keys.  [default: webhook.key in the data directory]",
        ),
        click.option(
            "--data",
            metavar="DIR",
            default="semel-data",
            envvar="SEMEL_DATA",
            show_envvar=True,
            show_default=True,
            help="Data directory.",
        ),
    ):
        command = option(command)
    return command


@click.group("webhook-key")
def webhook_key_command() -> None:
    """Show and replace the key that signs webhooks.

    These commands read and change the file of a server, and work whether it runs or not.
    """


@webhook_key_command.command("show")
@_file_options
def show_command(data: str, name: str | None, *, is_json: bool) -> None:
    """Show the public key that verifies webhooks, and those that are retired."""
    path = _checked(key_file(data, name))
    keys, now_s = _run(lambda: WebhookKeys.load(path)), SystemClock().now_ms() // 1000
    print_facts(_facts(path, keys, now_s), _document(path, keys, now_s), is_json=is_json)


@webhook_key_command.command("rotate", cls=ChangingCommand)
@_file_options
def rotate_command(data: str, name: str | None, *, is_json: bool) -> None:
    """Replace the key that signs webhooks.

    The old public key stays in the JWKS document for a week. Tokens of wakes that are in flight
    stay valid. A running server uses the new key after SIGHUP, or after its next start.
    """
    path = _checked(key_file(data, name))
    now_s = SystemClock().now_ms() // 1000
    keys = _run(lambda: WebhookKeys.rotate(path, now_s))
    sentence = f"{path} has the new key {keys.kid}; {_NEXT}"
    report(sentence, _document(path, keys, now_s), is_json=is_json)


def _checked(path: str) -> str:
    """Return the name of a file. Raises CommandRefused if there is none."""
    if not os.path.exists(path):
        raise CommandRefused(
            f"{path} does not exist; a server creates it when it needs keys first. Pass the same"
            " --data or --webhook-key as to `semel serve`",
            EXIT_NO_INPUT,
        )
    return path


def _run(action: Callable[[], WebhookKeys]) -> WebhookKeys:
    try:
        keys = action()
        _ = keys.kid
    except BadWebhookKeys as error:
        raise CommandRefused(str(error)) from error
    except ImportError as error:
        raise CommandRefused(
            "keys of webhooks need the package cryptography, which is not installed; "
            + install_advice("'.[webhooks]'")
        ) from error
    return keys


def _facts(path: str, keys: WebhookKeys, now_s: int) -> dict[str, object]:
    lines = [f"{each['kid']}, until {each['published_until']}" for each in _retired(keys, now_s)]
    return {
        "file": path,
        "kid": keys.kid,
        "public_key": to_base64url(keys.public_key),
        "retired": "; ".join(lines) or None,
    }


def _document(path: str, keys: WebhookKeys, now_s: int) -> dict[str, object]:
    public = to_base64url(keys.public_key)
    return {
        "file": path,
        "kid": keys.kid,
        "public_key": public,
        "retired": _retired(keys, now_s),
    }


def _retired(keys: WebhookKeys, now_s: int) -> list[dict[str, str]]:
    """Return the retired keys that the JWKS document still has."""
    return [
        {
            "kid": kid_of(each.public_key),
            "published_until": print_instant(1000 * (each.retired_at_s + RETIRED_SECONDS)),
        }
        for each in keys.published(now_s)
    ]
