"""The file edge: where user files live, reading with every problem reported, writing whole files or nothing.

Whatever is read is validated here against the frozen dataclasses of ``profiles.schema``; whatever is wrong becomes one
``InvalidInputError`` that names the file, the field and what is expected.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import json
import os
import stat
import tomllib
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from profiles.errors import InvalidInputError, PacelineError

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")
SHIPPED = Path(__file__).resolve().parent
LARGEST_FILE_BYTES = 256 * 10**6
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}
_KEYWORD_PROBLEMS = ("unexpected_keyword_argument", "extra_forbidden")


def home() -> Path:
    """The user's folder: ``$PACELINE_HOME``, else the platform's data folder. It need not exist."""
    given = os.environ.get("PACELINE_HOME")
    if given:
        return Path(given).expanduser()
    import platformdirs

    return platformdirs.user_data_path("paceline", appauthor=False)


def folders(kind: str) -> tuple[Path, Path]:
    """The user's and the shipped folder for one kind of file, the one that wins first."""
    return home() / kind, SHIPPED / kind


def list_files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """Files of a folder that end in one of the suffixes, by name; none if there is no such folder."""
    try:
        found = [path for path in folder.iterdir() if path.name.endswith(tuple(suffixes)) and path.is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise PacelineError(f"cannot list {folder}: {error.strerror or error}") from error
    return sorted(path for path in found if not path.name.startswith("."))


# ------------------------------------------------------------------------------------------------- reading


def read_bytes(path: Path) -> bytes:
    """Content of a file, unpacked if it ends in ``.gz``.

    Raises:
        InvalidInputError: the file is missing, unreadable, no regular file, too large, or a broken gzip file.
    """
    try:
        found = path.stat()
        data = path.read_bytes() if stat.S_ISREG(found.st_mode) and found.st_size <= LARGEST_FILE_BYTES else None
        if data is not None and path.suffix == ".gz":
            data = _unpacked(data)
    except FileNotFoundError as error:
        raise InvalidInputError(str(path), ["no such file"]) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidInputError(str(path), [f"a truncated or corrupted gzip file: {error}"]) from error
    except OSError as error:
        raise InvalidInputError(str(path), [f"cannot be read: {error.strerror or error}"]) from error
    if data is None:
        problem = f"cannot be read: allowed is a regular file of at most {LARGEST_FILE_BYTES // 10**6} MB"
        raise InvalidInputError(str(path), [problem])
    return data


def _unpacked(data: bytes) -> bytes | None:
    """Content of a gzip file; ``None`` if it is larger than a file may be."""
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        content = stream.read(LARGEST_FILE_BYTES + 1)
    return content if len(content) <= LARGEST_FILE_BYTES else None


def read_text(path: Path) -> str:
    """Content of a UTF-8 file. Raises InvalidInputError like ``read_bytes``, or if it is in another encoding."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInputError(str(path), [f"not UTF-8 text: {error.reason} at byte {error.start}"]) from error


def read_toml(path: Path) -> dict[str, Any]:
    """Tables of a TOML file. Raises InvalidInputError if it cannot be read or is not TOML."""
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InvalidInputError(str(path), [f"not valid TOML (truncated or corrupted?): {error}"]) from error


def load_json(kind: type[T], path: Path) -> T:
    """A value of ``kind`` from a JSON or gzipped JSON file. Raises InvalidInputError with every problem."""
    return parse_json(kind, read_text(path), str(path))


def parse_json(kind: type[T], text: str, subject: str) -> T:
    """A value of ``kind`` from JSON text; ``subject`` names its origin in the error. Raises InvalidInputError."""
    from pydantic import ValidationError

    try:
        value = adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise InvalidInputError(subject, explain(kind, error.errors(include_url=False))) from error
    if "NaN" in text or "Infinity" in text:
        _refuse_non_finite(text, subject)
    return value


def parse_plain(kind: type[T], plain: Mapping[str, Any], subject: str) -> T:
    """A value of ``kind`` from plain dicts and lists, as strictly as from JSON. Raises InvalidInputError."""
    try:
        text = json.dumps(plain, allow_nan=False, default=str)
    except ValueError as error:
        raise InvalidInputError(subject, ["every number must be finite, but there is an infinity or a NaN"]) from error
    return parse_json(kind, text, subject)


def _refuse_non_finite(text: str, subject: str) -> None:
    def refuse(word: str) -> float:
        raise InvalidInputError(subject, [f"every number must be finite, but there is a {word}"])

    json.loads(text, parse_constant=refuse)


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """The validator of a stored type, built when it is first needed."""
    if kind not in _ADAPTERS:
        from pydantic import TypeAdapter

        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def explain(kind: type[Any], errors: Sequence[ErrorDetails]) -> list[str]:
    """One line per validation error: the field's path, what is wrong, and what was given or is allowed."""
    return [_explain_one(kind, error) for error in errors]


def _explain_one(kind: type[Any], error: ErrorDetails) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "json_invalid":
        return f"not valid JSON (truncated or corrupted?): {error['msg']}"
    if error["type"] in _KEYWORD_PROBLEMS:
        known = ", ".join(field.name for field in dataclasses.fields(kind)) if len(error["loc"]) == 1 else ""
        return f"{where}: not a known field" + (f"; known: {known}" if known else "")
    if error["type"].startswith("missing"):
        return f"{where}: is required but missing"
    return f"{where or 'content'}: {error['msg'].lower()}, got {_short(error['input'])}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ------------------------------------------------------------------------------------------------- writing


def to_plain(value: object) -> object:
    """Dicts and lists of a stored value, without the fields that have their default: what is written to files."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        told = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {field.name: to_plain(part) for field, part in told if not _is_default(field, part)}
    if isinstance(value, Mapping):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(part) for part in value]
    return value


def _is_default(field: dataclasses.Field[Any], part: object) -> bool:
    default = field.default_factory() if callable(field.default_factory) else field.default
    return type(part) is type(default) and part == default


def to_json(value: object, *, indent: int | None = None) -> bytes:
    """UTF-8 JSON of a stored value, defaults left out; what UTF-8 cannot hold becomes ``?``.

    Raises:
        PacelineError: a number in it is infinite or not a number.
    """
    separators = (",", ":") if indent is None else None
    try:
        text = json.dumps(to_plain(value), allow_nan=False, ensure_ascii=False, indent=indent, separators=separators)
    except ValueError as error:
        raise PacelineError(f"cannot store a {type(value).__name__}: {error}") from error
    return text.encode("utf-8", errors="replace")


def write_whole(path: Path, data: bytes) -> Path:
    """Write a file completely or not at all: the old content stays until the new one is on the disk.

    Raises:
        PacelineError: the disk is full or read-only, or the folder may not be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_and_sync(temporary, data)
        temporary.replace(path)
    except OSError as error:
        raise PacelineError(f"cannot write {path}: {error.strerror or error}; nothing was changed") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path


def _write_and_sync(path: Path, data: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def file_stem(name: str) -> str:
    """A model's or machine's name as a file name: what file systems refuse becomes ``_``."""
    return "".join(letter if letter.isalnum() or letter in "-_.@+" else "_" for letter in name)
