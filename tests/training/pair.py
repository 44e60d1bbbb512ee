"""Two processes on this machine that train together."""

from __future__ import annotations

import signal
import socket
import time

from tests.training.commands import ROOT, Command


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


class Pair:
    """Two processes with the same arguments, but for those that tell who they are.

    Args:
      module: the command's.
      arguments: flags.
      own: further arguments of each.
    """

    def __init__(
        self, module: str, *arguments: object, own: tuple[tuple[str, ...], ...] = ((), ())
    ):
        port = free_port()
        self._processes = []
        for index in range(2):
            who = (f"--coordinator=localhost:{port}", "--num_processes=2", f"--process_id={index}")
            given = (*arguments, *who, *own[index])
            platform = {"JAX_PLATFORMS": "cpu"}
            self._processes.append(Command(module, given, ROOT, platform, number=index))

    def said(self, index: int) -> str:
        """What a process has printed so far: its log, then the rest but the transport's chatter."""
        process = self._processes[index]
        lines = [*process.stderr.splitlines(), *process.stdout.splitlines()]
        return "\n".join(line for line in lines if not line.startswith("[Gloo]"))

    def wait_for(self, index: int, text: str, seconds: float = 120) -> None:
        """Until a process has printed something."""
        end = time.monotonic() + seconds
        while text not in self.said(index):
            assert time.monotonic() < end and self._processes[index].running, self.said(index)
            time.sleep(0.01)

    def signal(self, index: int, number: int) -> None:
        self._processes[index].send(number)

    def codes(self, seconds: float = 180) -> list[int]:
        """The exit codes, once both are done; neither outlives this call."""
        try:
            return [process.wait(seconds).code for process in self._processes]
        finally:
            for process in self._processes:
                process.send(signal.SIGKILL)
