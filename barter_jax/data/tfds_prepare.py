"""Data sets of TensorFlow Datasets on disk: found as they are prepared, or else prepared now."""

import contextlib
import difflib
import importlib
import json
import logging
import os
import pathlib
import re
import shutil
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import filelock

from barter_jax.data.tfds_api import tensorflow_datasets
from barter_jax.data.tfds_standin import NeedsTensorFlow
from barter_jax.errors import RunError, UserError

log = logging.getLogger("barter_jax")

_NAME = re.compile(r"\w+(/[\w.+-]+)?(:(\d+|\*)(\.(\d+|\*)){2})?")
_ARCHIVE = re.compile(r"[\w-][\w.-]*\.(?:tar\.\w+|tar|tgz|zip|gz|bz2|rar|7z|mat|npz|csv|h5)\b")
# Where the instructions name files of which the others make no use.
_NEEDED = {"imagenet2012": ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar")}
_CHECK_SECONDS = 8.0
_SECONDS_BETWEEN_LOGS = 10.0
_STALL_SECONDS = 60.0
_SHOWN = 4
_UNFINISHED = ("incomplete", ".tmp", ".config")


class Unreachable(OSError):
    """The place to download from does not answer."""


def open_builder(name: str, dir: str | os.PathLike[str] | None) -> Any:
    """Returns the builder of a data set. To be called within `tensorflow_datasets()`.

    Args:
        name: `<name>[/<config>][:version]`.
        dir: the directory that TensorFlow Datasets calls data_dir; its own default if not set.

    Raises:
        UserError: there is no such data set, config or version.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"data.name=tfds/{name} is no name: write tfds/<name>[/<config>][:<version>], as "
            "tfds/eurosat/rgb:2.0.0"
        )
    with tensorflow_datasets() as tfds:
        try:
            place = str(pathlib.Path(dir).expanduser().absolute()) if dir else None
            return tfds.builder(name, data_dir=place)
        except tfds.core.DatasetNotFoundError as error:
            near = difflib.get_close_matches(name, builder_names(), n=1, cutoff=0.6)
            hint = f" (did you mean tfds/{near[0]}?)" if near else ""
            raise UserError(
                f"data.name=tfds/{name} is unknown to TensorFlow Datasets{hint}"
            ) from error
        except Exception as error:  # What a builder's own code raises may be anything.
            raise UserError(f"data.name=tfds/{name} {_not_opened(tfds, name, error)}") from error


def _is_prepared(builder: Any) -> bool:
    """Whether the data is there; the builder knows of it then.

    It may have been written by another process since the builder looked.
    """
    if not builder.is_prepared():
        return False
    if not builder.info.initialized:
        # By then it has taken its own default for the format, which what is read does not replace.
        written = json.loads((pathlib.Path(builder.data_dir) / "dataset_info.json").read_text())
        builder.info.set_file_format(written.get("fileFormat"), override=True)
        builder.info.read_from_directory(builder.data_dir)
    return True


def _not_opened(tfds: Any, name: str, error: Exception) -> str:
    for cause in _chain(error):
        if isinstance(cause, NeedsTensorFlow) and cause.name:  # A copy with other words has none.
            return f"can be opened by TensorFlow only (its code uses {cause.name}): choose another"
    base, _, config = name.partition(":")[0].partition("/")
    configs = list(tfds.builder_cls(base).builder_configs)
    if config and config not in configs:
        known = f"one of {_listed(configs)}" if configs else "none"
        return f"names a config that does not exist: choose {known}"
    return "cannot be opened: " + re.sub(
        '^Failed to construct dataset .*}": ', "", _first_line(error)
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def builder_names() -> list[str]:
    """The names of the data sets that TensorFlow Datasets has code for; needs no network."""
    with tensorflow_datasets() as tfds:
        return tfds.list_builders(with_community_datasets=False)


def prepare(builder: Any) -> None:
    """Downloads a data set and writes it as array_record files, unless that has been done.

    To be called within `tensorflow_datasets()`. Only one process at a time prepares a data set in
    one directory. What a failed attempt began is removed; whole downloads stay for the next one.

    Raises:
        UserError: a place to download from cannot be reached, files have to be downloaded by hand,
            an archive is not what it should be, or preparing needs TensorFlow or another package.
    """
    if _is_prepared(builder):
        return
    root = pathlib.Path(builder.data_dir).parents[len(_parts(builder)) - 1]
    _check_manual_files(builder, root)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_removing_leftovers(root, builder.name))
        stack.enter_context(_explained(builder, root))
        lock = root / f".{builder.name}.lock"
        _make_directory(root)
        stack.callback(lock.unlink, missing_ok=True)
        stack.enter_context(filelock.FileLock(lock))
        if _is_prepared(builder):  # Another process was faster.
            return
        log.info("preparing %s in %s", builder.info.full_name, builder.data_dir)
        stack.enter_context(_reported(root, builder.name))
        stack.enter_context(_quick_refusals())
        with tensorflow_datasets() as tfds:
            builder.download_and_prepare(
                file_format="array_record",
                download_config=tfds.download.DownloadConfig(try_download_gcs=False),
            )
    log.info("prepared %s", builder.info.full_name)


def _parts(builder: Any) -> tuple[str, ...]:
    """The folders of a data set within data_dir: name, config if it has any, version."""
    return tuple(builder.info.full_name.split("/"))


def _make_directory(path: pathlib.Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"data.dir={path} cannot be made ({error.strerror}): set it to a directory for the data"
        ) from error


def _check_manual_files(builder: Any, root: pathlib.Path) -> None:
    instructions = builder.MANUAL_DOWNLOAD_INSTRUCTIONS
    if not instructions or getattr(builder, "MANUAL_FILES_ARE_OPTIONAL", False):
        return
    manual = root / "downloads" / "manual"
    needed = _NEEDED.get(builder.name)
    names = needed or tuple(dict.fromkeys(_ARCHIVE.findall(instructions)))
    missing = [name for name in names if not (manual / name).exists()]
    # Without a list of our own, all that counts is that the user has begun to follow them.
    if missing if needed else not manual.is_dir() or not any(manual.iterdir()):
        raise UserError(
            f"{builder.info.full_name} has to be downloaded by hand: put "
            f"{' and '.join(missing) or 'its files'} into {manual} "
            f"({' '.join(instructions.split())})"
        )


@contextlib.contextmanager
def _explained(builder: Any, root: pathlib.Path) -> Iterator[None]:
    """Turns what preparing raises into one line."""
    name = builder.info.full_name
    try:
        yield
    except MemoryError:
        raise
    # A builder is somebody else's program: it raises what it likes.
    except Exception as error:
        # TensorFlow Datasets raises copies with more words: the innermost is as it was meant.
        for cause in reversed(list(_chain(error))):
            if isinstance(cause, UserError | RunError):
                raise cause from None
            if isinstance(cause, Unreachable):
                raise UserError(_unreachable(builder, root, cause)) from error
            if isinstance(cause, NeedsTensorFlow) and cause.name:
                raise UserError(
                    f"{name} can be prepared by TensorFlow only (its code uses {cause.name}): "
                    "prepare it where TensorFlow is installed, by tfds.builder(...)"
                    ".download_and_prepare(file_format='array_record'), and copy its directory to "
                    f"{builder.data_dir}"
                ) from error
            if isinstance(cause, ModuleNotFoundError) and cause.name:
                raise UserError(
                    f"{name} needs the package {cause.name.partition('.')[0]} to be prepared: "
                    "install it"
                ) from error
        raise UserError(
            f"{name} cannot be prepared in {root} ({type(error).__name__}: {_first_line(error)}): "
            f"if a file in {root / 'downloads'} is damaged or is another one, remove it and start "
            "again"
        ) from error


def _unreachable(builder: Any, root: pathlib.Path, error: Unreachable) -> str:
    files = [info.filename for info in (builder.url_infos or {}).values() if info.filename]
    files = files or _ARCHIVE.findall(builder.MANUAL_DOWNLOAD_INSTRUCTIONS or "")
    put = f"{_listed(files)} into {root / 'downloads' / 'manual'}, or " if files else ""
    return (
        f"{builder.info.full_name} is not in {root} and cannot be downloaded ({error}): connect "
        f"to the network, or put {put}the prepared data set (array_record) into {builder.data_dir}"
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else repr(error)


@contextlib.contextmanager
def _quick_refusals() -> Iterator[None]:
    """Checks that a host answers before TensorFlow Datasets spends minutes on asking it again.

    Its downloads also end when a host falls silent, or when this context does: the threads that
    wait for them would keep an interrupted program alive.
    """
    downloader = importlib.import_module("tensorflow_datasets.core.download.downloader")
    if not hasattr(downloader, "_open_url"):
        raise RunError(
            "this version of tensorflow-datasets downloads in an unknown way: install 4.9.10"
        )
    open_url = downloader._open_url
    stopped = threading.Event()

    def blocks_until_stopped(url: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
        try:
            for block in blocks:
                if stopped.is_set():
                    raise Unreachable(f"{_host(url)}: interrupted")
                yield block
        except OSError as error:
            raise Unreachable(f"{_host(url)}: {_reason(error)}") from error

    @contextlib.contextmanager
    def checked(url: str, **options):
        if url.startswith("http"):
            check_reachable(url)
            options.setdefault("timeout", _STALL_SECONDS)
        with open_url(url, **options) as (response, blocks):
            yield response, blocks_until_stopped(url, blocks)

    downloader._open_url = checked
    try:
        yield
    finally:
        stopped.set()
        downloader._open_url = open_url


def check_reachable(url: str, seconds: float = _CHECK_SECONDS) -> None:
    """Asks once, through the proxy that the environment names, and waits no longer than told.

    Raises:
        Unreachable: no answer, or one that refuses.
    """
    import requests  # Here, as TensorFlow Datasets has it: most runs download nothing.

    outcome: list[str] = []

    def ask() -> None:
        try:
            with requests.get(url, stream=True, timeout=seconds) as response:
                bad = response.status_code >= 400
                outcome.append(f"HTTP status {response.status_code}" if bad else "")
        except Exception as error:  # Whatever it is, nothing was got.
            outcome.append(_reason(error))

    # Looking up a name has no limit of its own: hence the thread.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    reason = outcome[0] if outcome else f"no answer in {seconds:g} s"
    if reason:
        raise Unreachable(f"{_host(url)}: {reason}")


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]


def _reason(error: BaseException) -> str:
    """The innermost words of an error of `requests`, which quotes the ones below it."""
    causes = list(_chain(error))
    for cause in reversed(causes):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return type(error).__name__


@contextlib.contextmanager
def _reported(root: pathlib.Path, name: str) -> Iterator[None]:
    """Logs now and then how much has been downloaded and written."""
    done = threading.Event()

    def report() -> None:
        while not done.wait(_SECONDS_BETWEEN_LOGS):
            log.info(
                "%s: %.0f MiB downloaded, %.0f MiB written",
                name,
                _size(root / "downloads" / name) / 2**20,
                _size(root / name) / 2**20,
            )

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _size(directory: pathlib.Path) -> int:
    total = 0
    for parent, _, files in os.walk(directory):
        for file in files:
            with contextlib.suppress(OSError):  # Renamed or removed meanwhile.
                total += os.stat(os.path.join(parent, file)).st_size
    return total


@contextlib.contextmanager
def _removing_leftovers(root: pathlib.Path, name: str) -> Iterator[None]:
    """On any failure, removes what was begun since: unfinished files, then empty folders."""
    before = set(_places(root, name))
    try:
        yield
    except BaseException:
        for path in _places(root, name):
            if path not in before and any(mark in path.name for mark in _UNFINISHED):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        for path in sorted(_places(root, name), reverse=True):
            if path not in before and path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        raise


def _places(root: pathlib.Path, name: str) -> Iterator[pathlib.Path]:
    """The root and the folders around it, and what a data set may make in it, where they exist."""
    for path in (root, *root.parents):
        if path.exists():
            yield path
    downloads = root / "downloads"
    for folder, deep in ((root, False), (downloads, False), (downloads / "extracted", False),
                         (downloads / name, True), (root / name, True)):  # fmt: skip
        if folder.is_dir():
            yield from folder.rglob("*") if deep else folder.iterdir()
