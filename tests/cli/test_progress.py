import sys

from cli.progress import progress


def test_without_a_terminal_each_step_is_one_line_on_standard_error(capsys):
    with progress("calibrating") as tell:
        for done, fraction in (("probes", 0.0), ("probes", 0.1), ("a" * 120, 0.5)):
            tell(done, fraction)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == ["  0% probes", f" 50% {'a' * 120}"]


def test_on_a_terminal_a_bar_shows_what_is_being_done(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with progress("calibrating") as tell:
        tell("gpt2 [micro_batch=4]", 0.5)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "gpt2 [micro_batch=4]" in printed.err
