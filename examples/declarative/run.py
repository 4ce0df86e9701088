"""Run the declarative pipeline in this directory.

    python examples/declarative/run.py

It starts a server, fills the stream `orders` and calls `spark-pipelines run`, as you would by hand
with a server of your own. Spark stores a checkpoint for each flow below `storage`, so the next run
continues after the last one. In a checkout, `pip install '.[pipelines]'` installs what it needs.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import semel
from semel.spark import ensure_java

HERE = Path(__file__).resolve().parent
ORDERS = [{"id": number, "total": 7 * number} for number in range(1, 101)]


def pipeline(directory: Path, url: str) -> Path:
    """Copy the pipeline, and return its spec with our server and a separate storage."""
    shutil.copytree(HERE, directory / "pipeline")
    spec = directory / "pipeline" / "spark-pipeline.yml"
    text = spec.read_text().replace("http://127.0.0.1:4437", url)
    spec.write_text(text.replace("file:///tmp/semel-pipeline", (directory / "storage").as_uri()))
    return spec


def run(spec: Path) -> None:
    """Run the pipeline up to the current tail of its streams."""
    ensure_java()  # sets JAVA_HOME
    command = shutil.which("spark-pipelines", path=f"{Path(sys.executable).parent}:{os.defpath}")
    assert command is not None, "run: pip install '.[pipelines]'"
    # Use only the Python of this environment, and only this machine.
    settings = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    subprocess.run([command, "run", "--spec", spec], env={**os.environ, **settings}, check=True)


def main() -> None:
    """Fill a stream, run the pipeline and check what it wrote."""
    with semel.local() as client, tempfile.TemporaryDirectory() as directory:
        client.stream("orders").create("application/json").append_many(ORDERS)
        run(pipeline(Path(directory), client.url))
        large = [message.value["id"] for message in client.stream("large").read()]
    assert large == [order["id"] for order in ORDERS if order["total"] > 350]
    print(f"{len(ORDERS)} orders in, {len(large)} large ones out, each once")


if __name__ == "__main__":
    main()
