"""Settings in a TOML file. What the command line or the environment says goes before them."""

import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import click

from semel.cli.exits import Refused
from semel.cli.options import Seconds

CONFIG: Final = "config"
_F = TypeVar("_F", bound=Callable[..., Any])


def config_option(function: _F) -> _F:
    """Take `--config FILE`, read before every other option."""
    return click.option(
        f"--{CONFIG}",
        metavar="FILE",
        envvar="SEMEL_CONFIG",
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        callback=_load,
        help="Settings in TOML, named as the options are: long_poll_timeout = 20.",
    )(function)


def _load(ctx: click.Context, _param: click.Parameter, path: str | None) -> None:
    if path is not None and not ctx.resilient_parsing:
        ctx.default_map = read_settings(path, ctx.command)


def read_settings(path: str, command: click.Command) -> dict[str, Any]:
    """Read the file; refuse what is no setting of the command."""
    known = {
        param.name: param
        for param in command.params
        if isinstance(param, click.Option) and param.name and param.name != CONFIG
    }
    settings = _parse(path)
    for key, value in settings.items():
        if key not in known:
            raise Refused(f"{path}: there is no setting {key!r}; {_nearest(key, known)}")
        wanted = _mistake(known[key], value)
        if wanted is not None:
            raise Refused(f"{path}: {key} must be {wanted}, and {value!r} is not")
    return settings


def _parse(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}; correct --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(f"{path} is not TOML: {error}") from error


def _nearest(key: str, known: Mapping[str, object]) -> str:
    near = get_close_matches(key.replace("-", "_").lower(), known, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"


def _mistake(option: click.Option, value: object) -> str | None:
    """Tell what the value should be; None if it is that."""
    if option.is_flag:
        return None if isinstance(value, bool) else "true or false"
    if isinstance(option.type, Seconds):
        is_right, wanted = isinstance(value, int | float), "a number of seconds"
    elif isinstance(option.type, click.types.IntParamType):
        is_right, wanted = isinstance(value, int), "an integer"
    else:
        is_right, wanted = isinstance(value, str), "a string"
    return None if is_right and not isinstance(value, bool) else wanted
