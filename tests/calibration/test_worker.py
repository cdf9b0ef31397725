"""The real worker: one process for the whole file, real tiny models, real deaths."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from calibration.campaign import run_campaign
from calibration.child import describe_failure, is_out_of_memory
from calibration.local import ALLOCATOR, LocalMeasurer, worker_environment
from calibration.trial import Trial, encode_group, grouped
from profiles.schema import Recipe

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
TINY = {
    "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 512, "max_position_embeddings": 128,
}  # fmt: skip
ENDLESS = Recipe(precision="fp32", micro_batch=20_000, seq=128)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model dir") / "config.json"
    path.write_text(json.dumps(TINY))
    return str(path)


@pytest.fixture(scope="module")
def measurer():
    with LocalMeasurer() as running:
        yield running


@pytest.fixture
def order(model):
    def make(**knobs):
        options = {key: knobs.pop(key) for key in ("timeout_s", "limit_bytes", "measure_s") if key in knobs}
        recipe = Recipe(**{"precision": "fp32", "seq": 128, "micro_batch": 4, **knobs})
        return Trial(model=model, machine="cpu", recipe=recipe, **{"measure_s": 0.5, "timeout_s": 60.0, **options})

    return make


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def entries(folder):
    return len(list(Path(folder).iterdir()))


def wait_for_child(pid, within_s=20.0):
    """The child of the worker once it computes: its threads are there."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for child in children(pid):
            if entries(f"/proc/{child}/task") > 1 or Path(f"/proc/{child}/cmdline").read_bytes():
                return child
        time.sleep(0.02)
    raise AssertionError("no child appeared")


def gone(pid, within_s=10.0):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def in_background(call):
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


INDEPENDENT_CLOCK = """
import json, sys, time
import torch
from calibration.models import resolve
from calibration.telemetry import thread_count
from calibration.training import build
from profiles.schema import Recipe

torch.set_num_threads(thread_count())
trainee = build(resolve(sys.argv[1]), Recipe(**json.loads(sys.argv[2])), "cpu")
trainee.step(1)
blocks_s = []
for _ in range(6):
    start_s = time.perf_counter()
    for _ in range(3):
        trainee.step(1)
    blocks_s.append((time.perf_counter() - start_s) / 3)
print(json.dumps(blocks_s))
"""


def independent_blocks_s(model, recipe):
    """Seconds per step of six blocks of three, by a plain loop in a process whose threads wait as the worker's do."""
    command = [sys.executable, "-c", INDEPENDENT_CLOCK, str(model), json.dumps(asdict(recipe))]
    done = subprocess.run(command, env=worker_environment(), capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_a_record_is_complete_and_agrees_with_an_independent_clock(measurer, order, model):
    trial = order()
    record = measurer.measure(trial)
    blocks_s = independent_blocks_s(model, trial.recipe)
    again = measurer.measure(trial)
    assert record.status == again.status == "ok", record.reason
    quietest_s = min(*record.samples_s, *again.samples_s)  # neighbours on this machine only ever slow a window down
    assert quietest_s == pytest.approx(min(blocks_s), rel=0.5)
    assert min(record.samples_s) <= record.step_s <= max(record.samples_s)
    assert record.step_s_low <= record.step_s <= record.step_s_high
    assert record.measured_grad_accum == (1,)
    assert record.samples_s
    assert record.steps_per_sample >= 1
    assert record.memory_kind == "resident"
    assert record.config_hash
    assert record.software.torch
    assert record.device.threads >= 1
    assert record.started_at.startswith("20")
    assert record.compile_s is None


def test_peak_memory_is_that_of_the_trial_and_not_of_the_process(measurer, order):
    small, large = (measurer.measure(order(micro_batch=batch, measure_s=0.1)) for batch in (4, 64))
    logits_bytes = 64 * 128 * 512 * 4
    assert 0 < small.peak_bytes < large.peak_bytes
    assert large.peak_bytes > 2 * logits_bytes
    assert large.peak_bytes < 100 * logits_bytes
    assert large.peak_device_bytes > large.peak_bytes
    assert small.peak_reserved_bytes is None


def test_accumulation_is_solved_from_two_real_ones(measurer, order):
    record = measurer.measure(order(grad_accum=32, micro_batch=2))
    assert record.status == "ok", record.reason
    assert record.measured_grad_accum == (2, 4)
    assert len(record.samples_s) % 2 == 0
    assert record.micro_s > 0
    assert record.step_s == pytest.approx(32 * record.micro_s + record.optimizer_s, rel=0.5)


def test_running_out_of_memory_is_a_result(measurer, order):
    record = measurer.measure(order(micro_batch=64, limit_bytes=50_000_000))
    assert record.status == "oom"
    assert "can't allocate memory" in record.reason
    assert record.step_s is None
    assert measurer.measure(order(limit_bytes=2_000_000_000, measure_s=0.1)).status == "ok"


def test_a_trial_that_takes_too_long_is_ended(measurer, order):
    trial = Trial(model=order().model, machine="cpu", recipe=ENDLESS, timeout_s=1.5)
    start = time.monotonic()
    record = measurer.measure(trial)
    assert record.status == "timeout"
    assert "1.5 s" in record.reason
    assert time.monotonic() - start < 15.0
    assert children(measurer.worker_pid) == []


@pytest.mark.parametrize(("trial_change", "reason"), [
    ({"optimizer": "adam"}, "adamw_fused"), ({"precision": "tf32"}, "compute capability"),
])  # fmt: skip
def test_what_cannot_run_is_refused(measurer, order, trial_change, reason):
    record = measurer.measure(order(**trial_change))
    assert record.status == "refused"
    assert reason in record.reason


def test_an_unknown_model_is_refused_and_a_gpu_that_is_not_there_too(measurer, order):
    assert measurer.measure(Trial(model="pythia-161m", machine="cpu", recipe=Recipe())).status == "refused"
    import torch

    if not torch.cuda.is_available():
        record = measurer.measure(Trial(model=order().model, machine="x", device="cuda", recipe=Recipe()))
        assert record.status == "refused"
        assert "CUDA" in record.reason


def test_a_child_killed_half_way_is_a_record_and_the_campaign_goes_on(measurer, order, tmp_path):
    measurer.measure(order(measure_s=0.1))
    worker = measurer.worker_pid
    orders = [Trial(model=order().model, machine="cpu", recipe=ENDLESS), order(measure_s=0.1)]
    thread, results = in_background(lambda: run_campaign(orders, measurer, tmp_path / "j.jsonl"))
    os.kill(wait_for_child(worker), signal.SIGKILL)
    thread.join(60)
    killed, fine = results[0]
    assert killed.status == "crash"
    assert "SIGKILL" in killed.reason
    assert "host out of memory likely" in killed.reason
    assert fine.status == "ok"
    assert measurer.worker_pid == worker


def test_a_killed_worker_takes_its_child_along_and_is_started_again(measurer, order, tmp_path):
    measurer.measure(order(measure_s=0.1))
    worker, starts = measurer.worker_pid, measurer.starts
    orders = [Trial(model=order().model, machine="cpu", recipe=ENDLESS), order(measure_s=0.1)]
    thread, results = in_background(lambda: run_campaign(orders, measurer, tmp_path / "j.jsonl"))
    child = wait_for_child(worker)
    os.kill(worker, signal.SIGKILL)
    assert gone(child)
    thread.join(60)
    assert [record.status for record in results[0]] == ["crash", "ok"]
    assert "-9" in results[0][0].reason
    assert measurer.starts == starts + 1


def test_ctrl_c_ends_everything_and_leaves_the_journal(order, model, tmp_path):
    """A campaign in a process of its own, interrupted as a terminal does it; a decoy lies in the working folder."""
    (tmp_path / "calibration.py").write_text("raise SystemExit('the decoy was imported')\n")
    journal = tmp_path / "j.jsonl"
    script = f"""
import sys
from pathlib import Path
from calibration.campaign import run_campaign
from calibration.local import LocalMeasurer
from calibration.trial import decode_group
orders = decode_group({encode_group([order(measure_s=0.1), order(micro_batch=20_000)])!r})
with LocalMeasurer() as measurer:
    say = lambda done, total, record: print(done, measurer.worker_pid, record.status, flush=True)
    run_campaign(orders, measurer, Path({str(journal)!r}), on_progress=say)
"""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, env=worker_environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        done, worker, status = process.stdout.readline().split()
        assert (done, status) == ("1", "ok")
        child = wait_for_child(int(worker))
        os.killpg(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=30)[1]
    assert "KeyboardInterrupt" in errors
    assert gone(child)
    assert gone(int(worker))
    assert len(journal.read_text().splitlines()) == 1


def test_trials_of_a_group_share_a_process_until_one_does_not_run(measurer, order, model):
    """Four trials: two of one process, one that needs more than the limit, one in a new process."""
    limited = {"measure_s": 0.1, "limit_bytes": 2 * 2**30}
    trials = [
        order(**limited), order(micro_batch=2, checkpointing="full", **limited), order(micro_batch=20_000, **limited),
        order(micro_batch=1, seq=64, **limited),
    ]  # fmt: skip
    starts = measurer.starts
    records = list(measurer.measure_group(trials))
    assert [r.status for r in records] == ["ok", "ok", "oom", "ok"]
    assert [r.recipe for r in records] == [t.recipe for t in trials]
    assert measurer.starts <= starts + 1
    assert measurer.measure(order(measure_s=0.1)).status == "ok"


def test_only_sizes_and_checkpointing_may_differ_inside_a_group():
    def gpu(**knobs):
        return Trial(model="m", machine="1xH200", device="cuda", recipe=Recipe(**knobs))

    trials = [
        gpu(micro_batch=1), gpu(micro_batch=2, checkpointing="full"), gpu(micro_batch=2, seq=64), gpu(precision="fp16"),
        gpu(precision="fp16", compile="on"), gpu(precision="fp16", compile="on"), gpu(optimizer="sgd"), gpu(),
        replace(gpu(), device="cpu"), replace(gpu(), device="cpu"), replace(gpu(), model="n"),
    ]  # fmt: skip
    assert [len(group) for group in grouped(trials)] == [3, 1, 1, 1, 1, 1, 1, 1, 1]
    assert [trial for group in grouped(trials) for trial in group] == trials


def test_the_process_that_forks_has_one_thread_and_nothing_else_open(measurer, order):
    measurer.measure(order(measure_s=0.1))
    worker = measurer.worker_pid
    before = entries(f"/proc/{worker}/fd")
    measurer.measure(order(optimizer="adam"))
    assert entries(f"/proc/{worker}/task") == 1
    assert entries(f"/proc/{worker}/fd") == before


def test_the_environment_keeps_what_the_user_set():
    environment = worker_environment({"PYTHONPATH": "/mine", "HOME": "/h"})
    assert environment["PYTHONSAFEPATH"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["PYTORCH_ALLOC_CONF"] == ALLOCATOR
    assert environment["PYTHONPATH"].endswith(":/mine")
    kept = worker_environment({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"})
    assert "PYTORCH_ALLOC_CONF" not in kept


def test_the_first_error_is_told_with_its_place():
    def fail():
        raise ValueError("the cause")

    try:
        try:
            fail()
        except ValueError as error:
            raise RuntimeError("what came of it") from error
    except RuntimeError as error:
        status, reason = describe_failure(error)
    assert status == "crash"
    assert reason.startswith("ValueError: the cause (in test_worker.py:")
    assert "fail" in reason


@pytest.mark.parametrize(("error", "expected"), [
    (MemoryError(), True), (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
    (RuntimeError("CUDA error: out of memory"), True), (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
    (RuntimeError("mat1 and mat2 shapes"), False), (ValueError("out of memory"), False),
])  # fmt: skip
def test_errors_that_mean_out_of_memory(error, expected):
    assert is_out_of_memory(error) is expected
