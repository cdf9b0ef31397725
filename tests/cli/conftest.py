"""Runs command lines in this process, with a user folder of its own and a terminal of 80 columns."""

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from cli.app import app
from cli.failures import run


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.fixture
def paceline(capsys) -> Callable[..., Ended]:
    def ask(*arguments: str) -> Ended:
        capsys.readouterr()
        code = run(app, arguments)
        printed = capsys.readouterr()
        return Ended(code, printed.out, printed.err)

    return ask
