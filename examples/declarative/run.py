"""Runs the declarative pipeline beside it.

    python examples/declarative/run.py

It starts a server, fills the stream `orders` and calls `spark-pipelines run`, as you would by hand
with a server of your own. Spark keeps a checkpoint for each flow below `storage`, so the next run
goes on behind the last one. `pip install 'semel[pipelines]'` brings what it needs.
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


def pipeline(place: Path, url: str) -> Path:
    """Copy the pipeline; its spec names our server, and a storage of its own."""
    shutil.copytree(HERE, place / "pipeline")
    spec = place / "pipeline" / "spark-pipeline.yml"
    text = spec.read_text().replace("http://127.0.0.1:4437", url)
    spec.write_text(text.replace("file:///tmp/semel-pipeline", (place / "storage").as_uri()))
    return spec


def run(spec: Path) -> None:
    """Run the pipeline up to the end of its streams as they are now."""
    ensure_java()  # JAVA_HOME
    command = shutil.which("spark-pipelines", path=f"{Path(sys.executable).parent}:{os.defpath}")
    assert command is not None, "run: pip install 'semel[pipelines]'"
    # The Python of this environment, and no other; and nothing but this machine.
    settings = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    subprocess.run([command, "run", "--spec", spec], env={**os.environ, **settings}, check=True)


def main() -> None:
    """Fill a stream, run the pipeline and look at what it wrote."""
    with semel.local() as client, tempfile.TemporaryDirectory() as place:
        client.stream("orders").create("application/json").append_many(ORDERS)
        run(pipeline(Path(place), client.url))
        large = [message.value["id"] for message in client.stream("large").read()]
    assert large == [order["id"] for order in ORDERS if order["total"] > 350]
    print(f"{len(ORDERS)} orders in, {len(large)} large ones out, each once")


if __name__ == "__main__":
    main()
