"""How long the threads of this process were ready to run but had no core. Linux."""

import os
from pathlib import Path

_THREADS = Path("/proc/self/task")
_NS = 1e9


class CoreWaits:
    """Sums over all threads alive when it was made; nothing where the kernel does not count it."""

    def __init__(self) -> None:
        stats = (thread / "schedstat" for thread in _THREADS.iterdir())
        self._fds = [os.open(stat, os.O_RDONLY) for stat in stats if stat.exists()]
        self._last_ns = self._total_ns()

    def _total_ns(self) -> int:
        # Three numbers: time on a core, time waiting for one, how often.
        return sum(int(os.pread(fd, 64, 0).split()[1]) for fd in self._fds)

    def since_last(self) -> float:
        """Seconds waited since the last call."""
        last_ns, self._last_ns = self._last_ns, self._total_ns()
        return (self._last_ns - last_ns) / _NS

    def __del__(self) -> None:
        for fd in self._fds:
            os.close(fd)
