"""Scripts that print the settings of a Java of a given version."""

from pathlib import Path

SCRIPT = """\
#!/bin/sh
cat >&2 <<END
Property settings:
    java.home = {home}
    java.specification.version = {version}
openjdk version "{version}"
END
exit {code}
"""


def write_java(home: Path, version: str, code: int = 0) -> Path:
    """Write `bin/java` into a Java home, and return the home."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(SCRIPT.format(home=home, version=version, code=code))
    java.chmod(0o755)
    return home
