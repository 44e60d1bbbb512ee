"""Reading named files from a folder or, without extracting it, from a zip archive."""

import os
import pathlib
import threading
import zipfile
import zlib
from typing import Protocol

from barter_jax.errors import UserError

REMEDY = "set data.dir to a folder or a zip archive that holds train/<class>/ and test/<class>/"
# The last two: an unknown compression, and an encrypted member.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


class Container(Protocol):
    """A tree of files. Names are relative, with forward slashes."""

    def entries(self) -> tuple[list[str], list[str]]:
        """Returns (files, folders), without the hidden ones and those of `__MACOSX`."""

    def read(self, name: str) -> bytes:
        """Returns a file's content; thread-safe. Raises UserError when the archive is damaged."""

    def describe(self, name: str) -> str:
        """Returns how to name a file to the user."""


class Folder:
    """A container on the file system. Links are followed, except those to a folder around them."""

    def __init__(self, root: pathlib.Path):
        self._root = root

    def entries(self) -> tuple[list[str], list[str]]:
        files: list[str] = []
        folders: list[str] = []
        for parent, subfolders, names in os.walk(self._root, followlinks=True, onerror=_raise):
            subfolders[:] = [
                name for name in subfolders if _wanted(name) and not _is_loop(parent, name)
            ]
            prefix = pathlib.PurePath(parent).relative_to(self._root).as_posix()
            prefix = "" if prefix == "." else f"{prefix}/"
            folders += [prefix + name for name in subfolders]
            files += [prefix + name for name in names if _wanted(name)]
        return files, folders

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def describe(self, name: str) -> str:
        return str(self._root / name)


class Zip:
    """A zip archive, with one open handle per reading thread: a shared one is not thread-safe."""

    def __init__(self, path: pathlib.Path, remedy: str = REMEDY):
        """Takes the archive's path, and what an error advises where it is none."""
        self._path = path
        self._remedy = remedy
        self._local = threading.local()

    def __reduce__(self):
        # Handles stay where they are; a process that gets the archive opens its own.
        return Zip, (self._path, self._remedy)

    def entries(self) -> tuple[list[str], list[str]]:
        files: set[str] = set()
        folders: set[str] = set()
        for name in self._handle().namelist():
            parts = name.split("/")
            if not all(map(_wanted, filter(None, parts))):
                continue
            if parts[-1]:
                files.add(name)
            # Not every archive has entries of its own for folders.
            folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
        return sorted(files), sorted(folders)

    def read(self, name: str) -> bytes:
        try:
            return self._handle().read(name)
        except _DAMAGE as error:
            raise UserError(
                f"{self.describe(name)}: cannot be read ({error}): make the archive anew"
            ) from error

    def describe(self, name: str) -> str:
        return f"{self._path}: {name}"

    def _handle(self) -> zipfile.ZipFile:
        if not hasattr(self._local, "handle"):
            try:
                self._local.handle = zipfile.ZipFile(self._path)
            except zipfile.BadZipFile as error:
                raise UserError(
                    f"data.dir={self._path} is a file but no zip archive ({error}): {self._remedy}"
                ) from error
        return self._local.handle


def open_container(dir: str | os.PathLike[str] | None, remedy: str = REMEDY) -> Container:
    """Opens a folder or a zip archive; `~` is expanded. `remedy` is what errors advise.

    Raises:
        UserError: when `dir` is not set or there is nothing.
    """
    if not dir:
        raise UserError(f"data.dir is not set: {remedy}")
    path = pathlib.Path(dir).expanduser()
    if path.is_dir():
        return Folder(path)
    if not path.exists():
        raise UserError(f"data.dir={path} does not exist: {remedy}")
    return Zip(path, remedy)


def _wanted(name: str) -> bool:
    return not name.startswith(".") and name != "__MACOSX"


def _is_loop(parent: str, name: str) -> bool:
    path = os.path.join(parent, name)
    if not os.path.islink(path):
        return False
    target = os.path.realpath(path)
    return os.path.commonpath([target, os.path.realpath(parent)]) == target


def _raise(error: OSError) -> None:
    raise error
