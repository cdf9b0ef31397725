"""Documentation that follows from the code: docs/commands.md from ``--help``, README's table from the modules.

``make docs`` writes both; a policy test keeps them equal.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
from pathlib import Path

from cli.app import app
from cli.failures import run

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("profiles", "simulator", "calibration", "cli")
TOOLS = ("benchmarks", "scripts")
START, END = "<!-- files: written by make docs -->", "<!-- end of files -->"
DATA = {
    "profiles/models/*.toml": "one file a model: its config as facts, the source, the published training run",
    "profiles/gpus/*.toml": "one file a GPU: dense rates, memory, power, links, with basis, source and date",
    "profiles/prices.toml": "rents and purchase prices, each with source and date",
    "profiles/energy.toml": "defaults that turn watts into money and carbon",
    "profiles/table_aliases.toml": "other names of columns and values in tables of measurements",
    "profiles/traces/*.json.gz": "traced models: operations and memory as polynomials",
    "profiles/measured/": "raw measurements, one JSON line a run",
    "profiles/fitted/": "fitted profiles of machines",
    "docs/plots/": "the plots of the accuracy page, written with it",
}
OTHER = {
    "pyproject.toml": "metadata, dependencies, and the settings of every tool",
    "constraints.txt": "the versions that the tests ran with",
    "Makefile": "one line a task; `make` lists them",
    ".ci/run": "what CI runs",
    ".pre-commit-config.yaml": "the same checks before a commit",
    "tests/": "mirrors the packages; `tests/policy/` keeps the rules of the house",
}
_HEAD = "# Commands\n\nWritten by `make docs` from `--help`; a test keeps it equal.\n"
_TAIL = """
## Exit codes

| code | meaning |
|--:|---|
| 0 | an answer; also a recipe that does not fit, asked about by `predict` |
| 2 | bad input: every problem at once, each with what is allowed; or an answer that cannot be written (disk full) |
| 3 | nothing is feasible: the binding constraint and the cheapest way out |
| 4 | a measurement campaign could not run |
| 130 | stopped by Ctrl-C; the same command goes on from there |
| 141 | whoever read the answer closed the pipe before its end |

With `--json` an error is one object on stdout too: `{"error": {"kind", "subject", "problems"}}`, with `kind` one of
`usage`, `unknown_name`, `invalid_input`, `infeasible`, `campaign`, `stopped`, `error`.
"""


def command_names() -> list[str]:
    """Every command, in the order of ``paceline --help``."""
    return [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]


def commands_page() -> str:
    """The whole of docs/commands.md."""
    sections = [([], "paceline"), *(([name], f"paceline {name}") for name in command_names())]
    pages = [f"## `{title}`\n\n```text\n{help_text(arguments)}\n```\n" for arguments, title in sections]
    return "\n".join([_HEAD, *pages]) + _TAIL


def help_text(arguments: list[str]) -> str:
    """What ``--help`` prints at 80 columns."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            run(app, [*arguments, "--help"])
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return printed.getvalue().strip()


def files_table() -> str:
    """One row a file: modules by the first line of their docstring, data and the rest as said above."""
    rows = {path.relative_to(ROOT).as_posix(): first_line(path) for package in PACKAGES for path in modules(package)}
    tools = {path.relative_to(ROOT).as_posix(): first_line(path) for folder in TOOLS for path in modules(folder)}
    docs = {path.relative_to(ROOT).as_posix(): title(path) for path in sorted((ROOT / "docs").rglob("*.md"))}
    lines = [f"| `{path}` | {line} |" for path, line in {**rows, **DATA, **tools, **docs, **OTHER}.items()]
    return "\n".join(["| file | what it is |", "|---|---|", *lines])


def modules(package: str) -> list[Path]:
    """Every module of a package; an ``__init__`` comes first in its folder."""
    return sorted((ROOT / package).rglob("*.py"), key=lambda path: (path.parent, path.name != "__init__.py", path.name))


def first_line(path: Path) -> str:
    """The first line of a module's docstring, ready for a Markdown table."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].replace("``", "`").replace("|", "\\|").rstrip(".:")


def title(path: Path) -> str:
    """A page's heading."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def readme() -> str:
    """README.md with its table of files brought up to date."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    return f"{before}{START}\n{files_table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    (ROOT / "docs" / "commands.md").write_text(commands_page(), encoding="utf-8")
    (ROOT / "README.md").write_text(readme(), encoding="utf-8")
