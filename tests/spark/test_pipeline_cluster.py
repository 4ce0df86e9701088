"""`semel run` on a cluster, with a file that does not name the cluster."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from semel import Client
from tests.spark.cluster import cluster
from tests.spark.programs import QUICK
from tests.spec.process import sound_server

SECONDS_MAX: Final = 240
HOST: Final = "127.0.0.4"
FILE: Final = """
import os
from semel.pipeline import Graph

graph = Graph("far", errors="errors")

@graph.stream("where", in_="in", out="out")
def where(n):
    if n == 3:
        raise ValueError(n)
    return [n, os.environ["SPARK_LOCAL_IP"]]
"""


def test_semel_run_takes_any_master(java: str, tmp_path: Path) -> None:
    file = tmp_path / "far.py"
    file.write_text(FILE)
    settings = {
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.executor.extraJavaOptions": QUICK,
    }
    submit = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    with sound_server(tmp_path / "data") as server, Client(server.url) as client:
        client.stream("in").create("application/json").append_many(list(range(10)))
        with cluster(tmp_path, HOST) as found:
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "semel", "run", str(file), "--url", server.url),
                    *("--master", found.url, "--available-now"),
                ],
                env={
                    **os.environ,
                    "JAVA_HOME": java,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell",
                },
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
        assert done.returncode == 0, done.stderr[-5_000:]
        values = [message.value for message in client.stream("out").read()]
        (error,) = client.stream("errors").read()
    assert values == [[n, HOST] for n in range(10) if n != 3]
    assert error.value["inputs"][0]["value"] == 3
