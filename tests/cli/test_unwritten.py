"""Answers that cannot be written: one line on standard error, an exit code, and nothing at the interpreter's end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAN = ("plan", "pythia-14m", "--machine", "1xH200", "--top", "1")
FULL = Path("/dev/full")


def start(*arguments, stdout, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "cli", *arguments], stdout=stdout, stderr=subprocess.PIPE, cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", **environment},
    )  # fmt: skip


def ended(process):
    _, err = process.communicate(timeout=120)
    return process.returncode, err.decode()


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", [PLAN, ("prices", "--json"), ("plan", "no-such-model", "--json")])
def test_a_full_disk_is_one_line(arguments):
    with FULL.open("wb") as full:
        code, err = ended(start(*arguments, stdout=full))
    assert code == 2
    assert err.splitlines()[-1] == "the answer cannot be written: No space left on device"
    assert "Traceback" not in err
    assert "Exception ignored" not in err


@pytest.mark.parametrize("arguments", [PLAN, ("prices", "--json"), ("--help",)])
def test_a_reader_that_goes_away_ends_it_quietly(arguments):
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = start(*arguments, stdout=write_end)
    os.close(write_end)
    assert ended(process) == (141, "")


def test_text_that_the_terminal_cannot_hold_names_the_way_out():
    code, err = ended(start(*PLAN, stdout=subprocess.DEVNULL, PYTHONIOENCODING="ascii"))
    assert code == 2
    assert err == "the answer has characters that ascii cannot hold; set PYTHONIOENCODING=utf-8\n"


def test_a_way_that_works_is_left_alone():
    process = start("--version", stdout=subprocess.PIPE)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out.startswith(b"paceline "), err) == (0, True, b"")
