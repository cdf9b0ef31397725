"""Documents agree with the code: commands, files, links, examples."""

import re
from pathlib import Path

import pytest

from scripts import docs

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)\s]*)?\)|\[[^\]]*\]\((#[^)\s]+)\)")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_command_page_is_what_help_prints():
    assert (ROOT / "docs/commands.md").read_text(encoding="utf-8") == docs.commands_page(), "run: make docs"


def test_every_command_is_documented():
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert len(docs.command_names()) >= 10
    for name in docs.command_names():
        assert f"## `paceline {name}`" in page
        assert f"paceline {name} [OPTIONS]" in page


def test_readme_lists_every_file():
    assert docs.readme() == README, "run: make docs"
    rows = set(re.findall(r"^\| `([^`]+)` \| \S.*\|$", README, re.MULTILINE))
    modules = {
        path.relative_to(ROOT).as_posix() for package in docs.PACKAGES for path in (ROOT / package).rglob("*.py")
    }
    assert modules <= rows
    assert "profiles/schema.py" in modules


def test_every_file_of_data_is_covered_by_a_row():
    shipped = [path for path in (ROOT / "profiles").rglob("*") if path.suffix in {".toml", ".gz", ".json", ".jsonl"}]
    assert shipped
    for path in shipped:
        name = path.relative_to(ROOT)
        assert any(name.match(row) or name.as_posix().startswith(row) for row in docs.DATA), path


def test_every_module_says_what_it_is():
    for package in docs.PACKAGES:
        for path in docs.modules(package):
            assert len(docs.first_line(path).split()) >= 3, path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_internal_links_lead_somewhere(page):
    for target, _, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        if target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor[1:] in anchors(page), f"{page.name} links to {anchor}"


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_the_link_check_finds_links():
    assert sum(len(LINK.findall(page.read_text(encoding="utf-8"))) for page in PAGES) >= 10


def test_python_examples_run(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})


def test_command_examples_name_real_commands_and_options(monkeypatch):
    examples = re.findall(r"^\$ paceline (.+?)(?:\s{2,}#.*)?$", README, re.MULTILINE)
    assert len(examples) >= 5
    for example in examples:
        command, *rest = example.split()
        page = docs.help_text([command])
        for option in (word for word in rest if word.startswith("--")):
            assert option in page, f"{command} has no {option}"
