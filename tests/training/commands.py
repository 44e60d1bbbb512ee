"""Runs this project's commands as `python -m` would, without paying for the imports each time.

A server process imports the libraries once and forks a child for each command; a child is a
process like any other: it has its own flags, files and signals, and may be killed.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import gc
import json
import os
import pathlib
import runpy
import select
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Result:
    """Exit code (negative where a signal killed it) and the two streams."""

    code: int
    stdout: str
    stderr: str


class Command:
    """A command that is running. One at a time of each number.

    Args:
      module: the command's.
      args: its arguments.
      cwd: where it runs.
      env: changes to the environment; None removes a variable.
      number: of the server that starts it.
    """

    def __init__(self, module: str, args, cwd, env, number: int = 0):
        self._folder = pathlib.Path(tempfile.mkdtemp())
        changes = sorted((k, v) for k, v in env.items() if os.environ.get(k) != v)
        for_jax = tuple(change for change in changes if change[0].startswith("JAX_"))
        self._server = server = _server(number, for_jax)
        request = {
            "module": module,
            "args": [str(arg) for arg in args],
            "cwd": str(cwd),
            "env": _changed(changes),
            "folder": str(self._folder),
        }
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.flush()
        self.pid = int(self._reply(60))
        self._code: int | None = None

    @property
    def stdout(self) -> str:
        return self._said("stdout")

    @property
    def stderr(self) -> str:
        """What it has said so far."""
        return self._said("stderr")

    def _said(self, name: str) -> str:
        # A process that was killed at once has no files yet.
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / name).read_text()
        return ""

    @property
    def running(self) -> bool:
        if self._code is None and select.select([self._server.stdout], [], [], 0)[0]:
            self._code = int(self._reply(1))
        return self._code is None

    def send(self, number: int) -> None:
        if self.running:
            os.kill(self.pid, number)

    def wait(self, timeout: float = 120) -> Result:
        if self._code is None:
            try:
                self._code = int(self._reply(timeout))
            except TimeoutError:
                os.kill(self.pid, signal.SIGKILL)
                self._code = int(self._reply(10))
                raise
        return Result(self._code, self.stdout, self.stderr)

    def _reply(self, timeout: float) -> bytes:
        if not select.select([self._server.stdout], [], [], timeout)[0]:
            raise TimeoutError(f"the command still runs after {timeout} s:\n{self.stderr}")
        line = self._server.stdout.readline()
        assert line, "the server of commands has died"
        return line


def _changed(changes) -> dict[str, str]:
    env = {**os.environ, **dict(changes)}
    return {name: value for name, value in env.items() if value is not None}


@functools.cache
def _server(number: int, changes: tuple[tuple[str, str | None], ...]) -> subprocess.Popen:
    """A server of its own for each of the commands that run at one time.

    JAX reads its variables when it is imported, so where they differ the server is another, too.
    """
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore::RuntimeWarning", "-m", "tests.training.commands"],
        cwd=ROOT,
        env=_changed(changes),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    atexit.register(server.kill)
    return server


@contextlib.contextmanager
def started(module: str, *args, cwd=ROOT, **env):
    """A running command; killed at the end if it still runs."""
    command = Command(module, args, cwd, env)
    try:
        yield command
    finally:
        command.send(signal.SIGKILL)
        command.wait()


def run(module: str, *args, cwd=ROOT, **env) -> Result:
    """Runs a command to its end."""
    with started(module, *args, cwd=cwd, **env) as command:
        return command.wait()


def assert_refused(result: Result, *fragments: str, code: int = 2) -> None:
    """The user's mistake, told in one line that holds the fragments, and nothing else."""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: "), result.stderr
    for fragment in fragments:
        assert fragment in lines[0], (fragment, lines[0])
    assert result.code == code
    assert result.stdout == ""


def _serve() -> None:
    sys.path[0] = str(ROOT)
    # All that the commands import, but not the commands: those define their flags when run.
    import barter_jax.blueprint
    import barter_jax.cli
    import barter_jax.deploy.model
    import barter_jax.training.loop  # noqa: F401

    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            replies.close()
            gc.freeze()
            _become(request)
            return
        replies.write(b"%d\n" % pid)
        status = os.waitpid(pid, 0)[1]
        replies.write(b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(request) -> None:
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    folder = pathlib.Path(request["folder"])
    for number, path, mode in (
        (0, os.devnull, os.O_RDONLY),
        (1, folder / "stdout", os.O_WRONLY | os.O_CREAT),
        (2, folder / "stderr", os.O_WRONLY | os.O_CREAT),
    ):
        file = os.open(path, mode)
        os.dup2(file, number)
        os.close(file)
    sys.argv = [request["module"], *request["args"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve()
