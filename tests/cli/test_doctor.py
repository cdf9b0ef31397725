from importlib import metadata

from cli import doctor


def test_reports_versions_devices_and_the_profile(paceline):
    ended = paceline("doctor", "--json")
    checks = {check["name"]: check for check in ended.json["checks"]}
    assert ended.code == 0
    assert checks["torch"]["found"] == metadata.version("torch")
    assert {"python", "numpy", "import names", "C++ compiler", "host", "user files"} <= set(checks)
    assert all(check["state"] in {"ok", "warn", "missing"} for check in checks.values())


def test_a_missing_package_is_named_with_what_needs_it(monkeypatch):
    monkeypatch.setitem(doctor.PACKAGES, "no-such-distribution", "dreaming")
    check = next(check for check in doctor.examine() if check.name == "no-such-distribution")
    assert (check.state, check.needed_for) == ("missing", "dreaming")


def test_one_failing_check_does_not_hide_the_others(monkeypatch):
    def _broken():
        raise OSError("disk on fire\nsecond line")

    monkeypatch.setattr(doctor, "CHECKS", (_broken, *doctor.CHECKS))
    checks = doctor.examine()
    assert (checks[0].name, checks[0].state, checks[0].found) == ("broken", "warn", "disk on fire")
    assert any(check.name == "python" for check in checks)


def test_a_profile_of_another_torch_warns():
    assert doctor._torch_of(metadata.version("torch")) == []
    assert doctor._torch_of(None) == []
    (check,) = doctor._torch_of("1.13.1")
    assert (check.state, "1.13.1" in check.found) == ("warn", True)


def test_a_read_only_folder_is_told(monkeypatch):
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    (check,) = doctor._home()
    assert (check.state, check.needed_for) == ("missing", "calibrating")


def test_damaged_lines_of_the_users_measurements_warn(paceline, tmp_path):
    checks = {check["name"]: check for check in paceline("doctor", "--json").json["checks"]}
    assert checks["measurements"]["state"] == "ok"
    folder = tmp_path / "home" / "measured"
    folder.mkdir(parents=True)
    good = '{"model":"m","machine":"cpu","recipe":{},"status":"ok","step_s":0.5}'
    (folder / "cpu--torch2.jsonl").write_text(f"{good}\ngarbage\n{good.replace('0.5', '-1')}\n")
    checks = {check["name"]: check for check in paceline("doctor", "--json").json["checks"]}
    assert checks["measurements"]["state"] == "warn"
    assert "cpu--torch2.jsonl, line 2: skipped" in checks["measurements"]["found"]
    assert checks["measurements"]["found"].endswith("; 1 more")
