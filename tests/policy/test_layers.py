"""Imports run one way, and the lower layers are pure."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_import_linter_keeps_every_contract():
    command = Path(sys.executable).parent / "lint-imports"
    ended = subprocess.run([str(command), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 kept, 0 broken" in ended.stdout
