"""The package loads without Spark and names what to install."""

import subprocess
import sys

import pytest

import semel.spark

BLOCKED = """
import sys
sys.modules["{module}"] = None
import semel.spark
assert "pyspark" not in [name for name, module in sys.modules.items() if module is not None]
try:
    semel.spark.{name}
except ModuleNotFoundError as error:
    print(error)
"""


def test_importing_it_does_not_import_spark() -> None:
    check = "import sys, semel.spark; print('pyspark' in sys.modules, 'pyarrow' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", check], capture_output=True, check=True).stdout
    assert said == b"False False\n"


def test_without_spark_each_name_says_which_extra_to_install() -> None:
    command = [sys.executable, "-c", BLOCKED.format(module="pyspark", name="session")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    advice = "in a checkout of semel, run: pip install '.[spark]'"
    assert said == f"pyspark is not installed; {advice}\n"


def test_java_is_found_without_spark() -> None:
    command = [sys.executable, "-c", BLOCKED.format(module="pyspark", name="ensure_java")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == ""


def test_another_missing_module_is_not_blamed_on_the_extra() -> None:
    command = [sys.executable, "-c", BLOCKED.format(module="msgspec", name="ensure_java")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "msgspec" in said
    assert "pip install" not in said


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = semel.spark.nothing


def test_the_public_names_are_listed() -> None:
    assert {"commit_batch", "ensure_java", "register", "session"} <= set(dir(semel.spark))
