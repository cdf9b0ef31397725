"""What a person waits for: ``--help`` and ``plan`` load nothing heavy."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "sklearn", "scipy", "matplotlib", "pynvml"}
PLAN = ["plan", "pythia-14m", "--machine", "1xH200"]


def loaded_by(arguments: list[str], tmp_path: Path) -> set[str]:
    """Top-level modules after running a command line in a fresh process."""
    code = (
        "import sys; from cli.app import app; from cli.failures import run\n"
        f"code = run(app, {arguments!r})\n"
        "print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))\n"
        "sys.exit(code)"
    )
    env = {"PACELINE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.rpartition("LOADED ")[2].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["plan", "--help"],
        PLAN,
        [*PLAN, "--json"],
        ["predict", *PLAN[1:]],
        ["models"],
        ["machines"],
        ["prices"],
    ],
)
def test_nothing_heavy_is_loaded(arguments, tmp_path):
    assert not HEAVY & loaded_by(arguments, tmp_path)


def test_help_loads_no_numbers_and_no_tables(tmp_path):
    assert not {"numpy", "pydantic", "rich", "simulator", "calibration"} & loaded_by(["--help"], tmp_path)


def test_the_check_sees_what_is_loaded(tmp_path):
    assert {"numpy", "simulator", "rich"} <= loaded_by(PLAN, tmp_path)
