"""Two processes on this machine that train together."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


class Pair:
    """Two processes with the same arguments, but for those that tell who they are.

    Args:
      arguments: of the interpreter: `-m module` or a script, and flags.
      own: further arguments of each.
    """

    def __init__(self, *arguments: object, own: tuple[tuple[str, ...], ...] = ((), ())):
        self._folder = pathlib.Path(tempfile.mkdtemp())
        port = free_port()
        self._processes = []
        for index in range(2):
            who = (f"--coordinator=localhost:{port}", "--num_processes=2", f"--process_id={index}")
            with (self._folder / str(index)).open("w") as said:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, *map(str, arguments), *who, *own[index]],
                        cwd=ROOT,
                        env={**os.environ, "JAX_PLATFORMS": "cpu"},
                        stdout=said,
                        stderr=subprocess.STDOUT,
                    )
                )

    def said(self, index: int) -> str:
        """What a process has printed so far, without the chatter of the transport."""
        lines = (self._folder / str(index)).read_text().splitlines()
        return "\n".join(line for line in lines if not line.startswith("[Gloo]"))

    def wait_for(self, index: int, text: str, seconds: float = 120) -> None:
        """Until a process has printed something."""
        end = time.monotonic() + seconds
        while text not in self.said(index):
            assert time.monotonic() < end and self._processes[index].poll() is None, self.said(
                index
            )
            time.sleep(0.01)

    def signal(self, index: int, number: int) -> None:
        self._processes[index].send_signal(number)

    def codes(self, seconds: float = 180) -> list[int]:
        """The exit codes, once both are done; neither outlives this call."""
        try:
            return [process.wait(seconds) for process in self._processes]
        finally:
            for process in self._processes:
                process.kill()
