"""The house's shape: short functions, short files, sorted public names, printing only where things are shown."""

import ast
import importlib
import statistics
from pathlib import Path

import pytest

from scripts.docs import PACKAGES, modules

ROOT = Path(__file__).parents[2]
MODULES = [path for package in PACKAGES for path in modules(package)]
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}
LONGEST_FUNCTION, USUAL_FUNCTION, LONGEST_FILE = 60, 12, 450


def functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def lines(node: ast.FunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_no_function_is_long(path):
    long = {node.name: lines(node) for node in functions(TREES[path]) if lines(node) > LONGEST_FUNCTION}
    assert not long


def test_functions_are_short_as_a_rule():
    lengths = [lines(node) for tree in TREES.values() for node in functions(tree)]
    assert len(lengths) > 200
    assert statistics.median(lengths) <= USUAL_FUNCTION


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_no_file_is_long(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("path", [path for path in MODULES if path.name == "__init__.py"], ids=named)
def test_public_names_are_sorted_and_exist(path):
    module = importlib.import_module(".".join(path.parent.relative_to(ROOT).parts))
    names = list(getattr(module, "__all__", []))
    assert len(set(names)) == len(names)
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(hasattr(module, name) for name in names)


ENTRY_POINTS = {
    "calibration/probes/__main__.py",
    "calibration/worker.py",
    "calibration/report.py",
    "calibration/trace.py",
}
"""Processes of their own, whose standard output is their answer."""


def test_only_the_command_line_and_processes_print():
    for path in MODULES:
        calls = [node.func for node in ast.walk(TREES[path]) if isinstance(node, ast.Call)]
        prints = [func for func in calls if isinstance(func, ast.Name) and func.id == "print"]
        assert not prints or named(path) in ENTRY_POINTS, path


def test_commands_are_short():
    bodies = [node for node in TREES[ROOT / "cli/app.py"].body if isinstance(node, ast.FunctionDef)]
    assert len(bodies) >= 11
    for node in bodies:
        first, last = node.body[0], node.body[-1]
        assert (last.end_lineno or 0) - first.lineno + 1 <= 20, node.name
