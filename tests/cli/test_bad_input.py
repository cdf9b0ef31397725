"""What a person can get wrong: one message with every problem, the exit code, the same as JSON, never a traceback."""

import pytest

import simulator
from profiles.errors import CampaignError, InfeasibleError

PLAN = ("plan", "pythia-14m", "--machine", "1xH200")


def test_all_problems_of_one_command_line_come_together(paceline):
    ended = paceline(
        "plan", "pythia-14", "--machine", "1xH20", "--tokens", "3Q", "--steps", "1.5", "--recipe", "micro_bach=3",
        "--top", "0", "--max-days", "-1", "--global-batch", "ten", "--json",
    )  # fmt: skip
    assert ended.code == 2
    told = "\n".join(ended.json["error"]["problems"])
    for culprit in ("3Q", "1.5", "micro_bach", "--top", "-1", "ten", "pythia-14'", "H20'", "give one of --tokens"):
        assert culprit in told, culprit
    for hint in ("micro_batch", "pythia-14m", "H200", "such as 300B"):
        assert hint in told, hint
    assert all(problem in ended.err for problem in ended.json["error"]["problems"])


@pytest.mark.parametrize(
    ("arguments", "culprit", "allowed"),
    [
        (("plan", "pythia-14m"), "--machine", "1xH200"),
        (("plan", "no-such-model", "-m", "1xH200"), "no-such-model", "config.json"),
        (("plan", "pythia-14m", "-m", "1xH2OO"), "H2OO", "H200"),
        ((*PLAN, "--tokens", "-5"), "-5", "such as 300B"),
        ((*PLAN, "--price", "free"), "free", "above zero"),
        ((*PLAN, "--max-usd", "0"), "0", "above zero"),
        ((*PLAN, "--tokens", "0.5"), "0.5", "from 1 to 1e18"),
        ((*PLAN, "--samples", "2e18"), "2e18", "from 1 to 1e18"),
        ((*PLAN, "--steps", "2.5"), "2.5", "a whole number from 1 to 1,000,000,000,000"),
        ((*PLAN, "--steps", "2T"), "2T", "a whole number from 1 to 1,000,000,000,000"),
        ((*PLAN, "--seq", "1B"), "1B", "a whole number from 1 to 100,000,000"),
        ((*PLAN, "--decoder-seq", "0"), "'0'", "a whole number from 1 to 100,000,000"),
        ((*PLAN, "--decoder-seq", "64"), "pythia-14m", "no decoder_seq"),
        (("predict", *PLAN[1:], "--decoder-seq", "64"), "pythia-14m", "no decoder_seq"),
        ((*PLAN, "--top", "20k"), "20k", "a whole number from 1 to 10,000"),
        ((*PLAN, "--global-batch", "9" * 5000), "999…", "1024±2%"),
        ((*PLAN, "--recipe", '{"seq": ' + "9" * 5000 + "}"), "recipe", "limit"),
        ((*PLAN, "--recipe", "precision=bf17"), "bf17", "bf16_pure"),
        ((*PLAN, "--recipe", "seq=1024", "--seq", "2048"), "seq=1024", "--seq 2048"),
        ((*PLAN, "--profile", "1xnothing"), "1xnothing", "known"),
        (("predict", "pythia-14m", "-m", "1xV100-16GB", "-r", "precision=bf16"), "bf16", "precision=fp16"),
        (("calibrate", "--budget", "10"), "10", "10m"),
        (("calibrate", "--budget", "-10m"), "-10m", "10m"),
        (("evaluate", "t.csv", "--prior", "guess"), "guess", "datasheet"),
        (("evaluate", "t.csv", "--calibrate", "3", "--calibrate-on", "u.csv"), "--calibrate-on", "rows of the table"),
        (("machines", "1xH2OO"), "H2OO", "H200"),
        (("models", "no-such-model"), "no-such-model", "config.json"),
    ],
)
def test_one_mistake(paceline, arguments, culprit, allowed):
    ended = paceline(*arguments)
    assert ended.code == 2
    assert culprit in ended.err
    assert allowed in ended.err
    assert ended.out == ""
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "arguments", [("frobnicate",), ("plan", "--frob", "x"), ("plan",), ("calibrate", "--seed", "x")]
)
def test_mistakes_in_the_options_themselves(paceline, arguments):
    ended = paceline(*arguments, "--json")
    assert ended.code == 2
    assert ended.json["error"]["kind"] == "usage"
    assert ended.json["error"]["problems"][0] in ended.err


@pytest.mark.parametrize("option", ["--seq", "--decoder-seq", "--top", "--steps"])
def test_whole_numbers_are_not_told_of_billions(paceline, option):
    ended = paceline(*PLAN, option, "many")
    assert (ended.code, "300B" in ended.err) == (2, False)
    assert "'many'" in ended.err


def test_a_config_that_is_none_is_refused_by_name(paceline, tmp_path):
    for text in ("not json", "[]", "{}", '{"model_type": "no_such_type"}'):
        path = tmp_path / "config.json"
        path.write_text(text)
        ended = paceline("plan", str(path), "-m", "1xH200")
        assert ended.code == 2, text
        assert str(tmp_path) in ended.err or "no_such_type" in ended.err


def test_what_cannot_be_satisfied_exits_3_and_names_the_limit(paceline):
    ended = paceline(*PLAN, "--max-usd", "1", "--json")
    assert ended.code == 3
    assert ended.json["error"]["kind"] == "infeasible"
    assert "max_usd" in ended.err
    assert "way out" in ended.err


def test_a_limit_without_a_length_is_bad_input(paceline):
    ended = paceline("plan", "mixtral-8x7b", "-m", "1xB200", "-r", "optimizer=sgd,micro_batch=1", "--max-days", "3")
    assert (ended.code, "--tokens" in ended.err) == (2, True)


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (CampaignError("the first trial failed: no driver"), 4, "campaign"),
        (InfeasibleError("nothing fits"), 3, "infeasible"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_endings(paceline, monkeypatch, error, code, kind):
    def fail(*_args, **_kwargs):
        raise error

    monkeypatch.setattr(simulator, "plan", fail)
    ended = paceline(*PLAN, "--json")
    assert (ended.code, ended.json["error"]["kind"]) == (code, kind)
    assert ("goes on from there" in ended.err) == (code == 130)


def test_a_bug_of_ours_keeps_its_traceback(paceline, monkeypatch):
    def fail(*_args, **_kwargs):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(simulator, "plan", fail)
    with pytest.raises(ZeroDivisionError, match="ours"):
        paceline(*PLAN)
