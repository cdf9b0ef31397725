import json
from dataclasses import replace

import pytest

from calibration.campaign import Journal, estimate_campaign_s, measure_trial, run_campaign
from calibration.testing import FakeMachine
from calibration.trial import Trial, decode_group, decode_measurement, encode, encode_group
from profiles.errors import CampaignError, InvalidInputError
from profiles.records import read_measurements
from profiles.schema import Recipe


def linear(recipe):
    return 0.01 * recipe.micro_batch * recipe.grad_accum + 0.002


def trials(*micro_batches, **knobs):
    return [trial(micro_batch=batch, **knobs) for batch in micro_batches]


def trial(**knobs):
    return Trial(model="tiny", machine="fake", recipe=Recipe(**knobs))


class Killed(Exception):
    pass


class DiesAt:
    """A measurer whose host is pulled away at the n-th trial."""

    def __init__(self, machine, count, error):
        self.machine, self.left, self.error, self.closed = machine, count, error, False

    def measure(self, order):
        if self.left == 0:
            raise self.error
        self.left -= 1
        return self.machine.measure(order)

    def close(self):
        self.closed = True


def test_records_are_journalled_and_say_what_was_scripted(tmp_path):
    journal = tmp_path / "j.jsonl"
    seen = []
    records = run_campaign(
        trials(1, 3, grad_accum=16), FakeMachine(step_s=linear), journal,
        on_progress=lambda done, total, record: seen.append((done, total, record.status)),
    )  # fmt: skip
    assert [record.step_s for record in records] == pytest.approx([0.162, 0.482])
    assert [record.micro_s for record in records] == pytest.approx([0.01, 0.03])
    assert records[0].optimizer_s == pytest.approx(0.002)
    assert records[0].measured_grad_accum == (2, 4)
    assert "2 and 4" in records[0].note
    assert list(read_measurements(journal)) == records
    assert seen == [(1, 2, "ok"), (2, 2, "ok")]


@pytest.mark.parametrize("error", [Killed(), KeyboardInterrupt()])
def test_a_killed_campaign_goes_on_where_it_was(tmp_path, error):
    journal, machine = tmp_path / "j.jsonl", FakeMachine(step_s=linear)
    dying = DiesAt(machine, 2, error)
    with pytest.raises(type(error)):
        run_campaign(trials(1, 2, 3, 4), dying, journal)
    assert dying.closed
    assert len(read_measurements(journal)) == 2
    records = run_campaign(trials(1, 2, 3, 4), machine, journal)
    assert [order.recipe.micro_batch for order in machine.trials] == [1, 2, 3, 4]
    assert [record.recipe.micro_batch for record in records] == [1, 2, 3, 4]


def test_a_record_cut_off_by_the_kill_is_measured_again(tmp_path):
    journal, machine = tmp_path / "j.jsonl", FakeMachine(step_s=linear)
    run_campaign(trials(1, 2), machine, journal)
    text = journal.read_text()
    journal.write_text(text[:-40])
    run_campaign(trials(1, 2), machine, journal)
    assert [order.recipe.micro_batch for order in machine.trials] == [1, 2, 2]


def test_failures_are_results_and_are_not_repeated_unless_asked(tmp_path):
    journal = tmp_path / "j.jsonl"
    machine = FakeMachine(
        step_s=linear,
        peak_bytes=lambda recipe: recipe.micro_batch * 10,
        memory_bytes=45,
        hangs=lambda recipe: recipe.compile == "on",
        crash=lambda recipe: "RuntimeError: no such kernel" if recipe.optimizer == "lion" else None,
    )
    orders = [trial(micro_batch=5), trial(compile="on"), trial(optimizer="lion"), trial(micro_batch=4)]
    records = run_campaign(orders, machine, journal)
    assert [record.status for record in records] == ["oom", "timeout", "crash", "ok"]
    assert "50 bytes of 45" in records[0].reason
    assert "300 s" in records[1].reason
    assert records[1].trial_s == pytest.approx(300.0)
    assert records[2].reason == "RuntimeError: no such kernel"
    run_campaign(orders, machine, journal)
    assert len(machine.trials) == 4
    run_campaign(orders, machine, journal, retry=("oom", "timeout"))
    assert machine.trials[4:] == orders[:2]


def test_when_everything_fails_the_first_error_is_shown(tmp_path):
    machine = FakeMachine(step_s=linear, crash=lambda recipe: f"ValueError: wrong number {recipe.micro_batch}")
    with pytest.raises(CampaignError, match=r"all 2 trials failed.*ValueError: wrong number 7") as caught:
        run_campaign(trials(7, 8), machine, tmp_path / "j.jsonl")
    assert caught.value.exit_code == 4
    assert len(read_measurements(tmp_path / "j.jsonl")) == 2


def test_the_peak_of_the_second_step_decides(tmp_path):
    gigabyte = 10**9
    machine = FakeMachine(
        step_s=linear, peak_bytes=lambda _: (30 * gigabyte, 42 * gigabyte), memory_bytes=40 * gigabyte
    )
    record = machine.measure(trial())
    assert record.status == "oom"
    assert "step 2" in record.reason
    roomy = FakeMachine(step_s=linear, peak_bytes=lambda _: (30 * gigabyte, 42 * gigabyte))
    assert roomy.measure(trial()).peak_bytes == 42 * gigabyte


def test_no_trial_starts_after_the_budget(tmp_path):
    machine = FakeMachine(step_s=linear)
    records = run_campaign(
        trials(1, 2, 3, 4, 5), machine, tmp_path / "j.jsonl", budget_s=1.5, clock=lambda: machine.now_s
    )
    assert 1 <= len(records) < 5
    assert machine.now_s > 1.5


class InGroups(FakeMachine):
    """Remembers which trials came together, and whether it was closed amid them."""

    def __init__(self, **scripted):
        super().__init__(**scripted)
        self.groups = []

    def measure_group(self, orders):
        self.groups.append([order.recipe.micro_batch for order in orders])
        return super().measure_group(orders)


def on_gpu(*micro_batches, **knobs):
    return [replace(one, device="cuda") for one in trials(*micro_batches, **knobs)]


def test_neighbours_share_a_trainee_where_asked_to(tmp_path):
    machine = InGroups(step_s=linear)
    orders = [*on_gpu(1, 2), *on_gpu(3, precision="fp16"), *on_gpu(4, 5, optimizer="sgd")]
    records = run_campaign(orders, machine, tmp_path / "j.jsonl", share=True)
    assert machine.groups == [[1, 2], [4, 5]]
    assert [record.recipe for record in records] == [order.recipe for order in orders]
    run_campaign([*orders, *on_gpu(6, optimizer="sgd")], machine, tmp_path / "j.jsonl", share=True)
    assert len(machine.trials) == 6, "what is in the journal is not measured again"
    apart = InGroups(step_s=linear)
    run_campaign(orders, apart, tmp_path / "k.jsonl")
    assert not apart.groups
    assert apart.trials == orders


def test_a_group_is_left_and_its_process_ended_when_the_budget_is_spent(tmp_path):
    machine = InGroups(step_s=linear)
    records = run_campaign(
        on_gpu(1, 2, 3, 4, 5), machine, tmp_path / "j.jsonl", share=True, budget_s=1.5, clock=lambda: machine.now_s
    )
    assert 1 <= len(records) < 5
    assert machine.closed


def test_a_judge_sees_every_record_before_the_journal_does(tmp_path):
    journal = tmp_path / "j.jsonl"
    run_campaign(trials(1, 2), FakeMachine(step_s=linear), journal, judge=lambda r: replace(r, note="judged"))
    assert [record.note for record in read_measurements(journal)] == ["judged", "judged"]


def test_two_models_of_one_name_are_told_apart_by_hash(tmp_path):
    journal = Journal(tmp_path / "j.jsonl")
    first = Trial(model="config.json", machine="fake", recipe=Recipe(), config_hash="aaa")
    measure_trial(first, FakeMachine(step_s=linear), journal)
    assert journal.find(first) is not None
    assert journal.find(Trial(model="config.json", machine="fake", recipe=Recipe(), config_hash="bbb")) is None
    assert Journal(tmp_path / "j.jsonl").find(first) is not None


def test_a_damaged_line_is_kept_as_a_problem_and_its_trial_runs_again(tmp_path):
    path, machine = tmp_path / "j.jsonl", FakeMachine(step_s=linear)
    run_campaign(trials(1, 2), machine, path)
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{second[:40]}\n")
    journal = Journal(path)
    (problem,) = journal.problems
    assert problem.startswith(f"{path}, line 2: skipped")
    assert [journal.find(one) is not None for one in trials(1, 2)] == [True, False]
    assert Journal(tmp_path / "none.jsonl").problems == ()


def test_noise_follows_the_seed():
    recipe = trial(micro_batch=8)
    one, same, other = (FakeMachine(step_s=linear, noise=0.05, seed=seed).measure(recipe) for seed in (1, 1, 2))
    assert one == same
    assert one.step_s != other.step_s
    assert one.step_s == pytest.approx(0.082, rel=0.1)
    assert one.step_s_low < one.step_s_high


def test_a_table_answers_for_its_recipes_only():
    machine = FakeMachine(step_s={Recipe(micro_batch=2): 0.5})
    assert machine.measure(trial(micro_batch=2)).step_s == pytest.approx(0.5)
    with pytest.raises(KeyError):
        machine.measure(trial(micro_batch=3))


def test_the_estimate_counts_starting_compiling_warming_and_measuring():
    plain = Trial(model="tiny", machine="m", device="cuda", recipe=Recipe(), measure_s=2.0)
    compiled = Trial(model="tiny", machine="m", device="cuda", recipe=Recipe(compile="on"), measure_s=2.0)
    one = estimate_campaign_s([plain], [0.1])
    assert one == pytest.approx(10.0 + 4.0 + 0.3 + 0.1 + 2.0)
    assert estimate_campaign_s([plain, plain], [0.1, 0.1]) == pytest.approx(2 * one - 10.0)
    assert estimate_campaign_s([compiled], [0.1]) == pytest.approx(one + 45.0)
    accumulating = Trial(model="tiny", machine="m", device="cuda", recipe=Recipe(grad_accum=100), measure_s=2.0)
    assert estimate_campaign_s([accumulating], [100.0]) == pytest.approx(10.0 + 4.0 + 6.0 + 6.0 + 18.0)
    assert estimate_campaign_s([plain], [1e9]) == pytest.approx(10.0 + plain.timeout_s)
    assert estimate_campaign_s([], []) == 0.0


def test_a_trial_with_senseless_times_is_refused_with_all_problems():
    with pytest.raises(InvalidInputError) as caught:
        Trial(model="m", machine="m", recipe=Recipe(), measure_s=0.0, timeout_s=-1.0)
    assert len(caught.value.problems) == 2


def test_orders_and_records_survive_the_wire():
    order = Trial(model="a/b c.json", machine="1xH200", recipe=Recipe(seq=7), limit_bytes=5, device="cuda")
    assert decode_group(encode_group([order])) == [order]
    record = FakeMachine(step_s=linear).measure(order)
    assert decode_measurement(encode(record)) == record
    assert json.loads(encode(record))["recipe"]["seq"] == 7
