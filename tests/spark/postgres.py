"""A PostgreSQL for the tests, with a private directory and port, never run as root."""

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

DEBIAN: Final = Path("/usr/lib/postgresql")
SECONDS_MAX: Final = 120


def binaries() -> Path | None:
    """Return the directory of the newest initdb and pg_ctl; None if there is none."""
    found = [path.parent for path in DEBIAN.glob("*/bin/initdb")]
    found.sort(key=lambda path: int(path.parent.name))
    on_path = shutil.which("initdb")
    return found[-1] if found else Path(on_path).parent if on_path else None


@contextmanager
def postgres(home: Path) -> Iterator[dict[str, str]]:
    """Run a server in `home`, which all users must be able to enter; yield its variables."""
    where = binaries()
    assert where is not None
    data, port = home / "data", free_port()
    data.mkdir(parents=True)
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(data, owner.pw_uid, owner.pw_gid)
    run(where, data, "initdb", "--auth=trust", "--username=semel", "--no-sync")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
    run(where, data, "pg_ctl", "start", "--wait", f"--log={data}/log", f"--options={options}")
    try:
        yield {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(port),
            "PGUSER": "semel",
            "PGDATABASE": "postgres",
        }
    finally:
        run(where, data, "pg_ctl", "stop", "--wait", "--mode=immediate")


def run(where: Path, data: Path, name: str, *arguments: str) -> None:
    """Run a PostgreSQL program, as user postgres if this is root: PostgreSQL refuses root."""
    user = "postgres" if os.geteuid() == 0 else None
    program = subprocess.run(
        [str(where / name), f"--pgdata={data}", *arguments],
        cwd=data,
        user=user,
        group=user,
        extra_groups=[] if user else None,
        # Not a pipe: the server would keep it open.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert program.returncode == 0, f"{name}: {log_of(data)}"


def log_of(data: Path) -> str:
    log = data / "log"
    return log.read_text() if log.exists() else "no log"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
