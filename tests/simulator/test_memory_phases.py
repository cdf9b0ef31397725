"""Peak by phase and largest buffers: phases whose largest is the peak, and buffers with closed forms of their own."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from profiles.machines import parse_machine
from profiles.schema import Fit, MemoryPoint, Op, Stack, Variant
from profiles.store import load_preset, load_workload, preset_names
from simulator.case import Case, Run
from simulator.components import Choice
from simulator.memory import moments_of
from simulator.memory_phases import PHASES, head_of, memory_phases
from simulator.outlook import sizes_of
from simulator.planning import predict
from simulator.rates import datasheet_profile
from simulator.recipes import check, complete

VOCABULARY = {"gpt2": 50257, "pythia-160m": 50304, "qwen3-0.6b": 151936, "llama-2-7b": 32000, "llama-3.2-1b": 128256}
MASKED = {"bert-base": 30522, "roberta-base": 50265}
KNOBS = [
    {"precision": p, "attention": a, "checkpointing": c, "optimizer": o, "compile": k}
    for p in ("fp32", "bf16", "bf16_pure")
    for a in ("sdpa", "eager")
    for c in ("none", "full", "every_2")
    for o, k in (("adamw_fused", "off"), ("adamw_foreach", "on"))
]


@cache
def case(name, machine="1xA100-80GB", seq=None, factor=1.0):
    workload = load_workload(name)
    assert workload is not None
    profile = datasheet_profile(parse_machine(machine))
    return Case(
        workload=workload, profile=replace(profile, fit=replace(profile.fit, memory_factor=factor)), run=Run(seq=seq)
    )


def both(name, *, machine="1xA100-80GB", seq=None, factor=1.0, **recipe):
    asked = case(name, machine, seq, factor)
    full = complete(recipe, asked)
    return memory_phases(asked, full), predict(asked, full)


@pytest.mark.parametrize("name", preset_names())
def test_the_largest_phase_is_the_peak_whatever_the_knobs(name):
    for knobs, (micro_batch, grad_accum) in itertools.product(KNOBS, [(1, 1), (3, 4), (32, 1)]):
        asked = case(name, "1xB200")
        recipe = complete({**knobs, "micro_batch": micro_batch, "grad_accum": grad_accum}, asked)
        if check(recipe, asked):
            continue
        found, said = memory_phases(asked, recipe), predict(asked, recipe)
        assert max(found.phases_bytes.values()) == found.phases_bytes[found.peak_phase] == said.peak_bytes
        assert list(found.phases_bytes) == [phase for phase in PHASES if phase in found.phases_bytes]
        assert "optimizer_step" in found.phases_bytes
        assert len(found.phases_bytes) >= 2
        assert found.attention_bytes[recipe.attention] == said.peak_device_bytes
        assert found.largest_buffer.bytes == max(b.bytes for b in found.buffers)
        assert found.largest_buffer.bytes < said.peak_bytes
        assert found.load_peak_bytes > 0


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.02, 1.1])
@pytest.mark.parametrize("micro_batch", [1, 2, 3, 5, 8, 13])
def test_no_phase_is_above_the_peak_whatever_the_fit_made_of_it(factor, micro_batch):
    for checkpointing in ("none", "full"):
        found, said = both("pythia-410m", factor=factor, micro_batch=micro_batch, checkpointing=checkpointing)
        assert max(found.phases_bytes.values()) == said.peak_bytes
        assert found.phases_bytes[found.peak_phase] == said.peak_bytes


def test_the_optimizers_step_is_the_peak_where_it_copies_all_parameters():
    found, said = both("pythia-160m", micro_batch=1, seq=16, optimizer="adamw_foreach", precision="fp32")
    params = case("pythia-160m").workload.params
    assert found.peak_phase == "optimizer_step"
    assert said.peak_bytes == pytest.approx(4 * params * 5 + Fit().workspace_bytes, rel=1e-3)
    assert found.phases_bytes["backward_at_the_head"] < said.peak_bytes


def test_a_large_vocabulary_peaks_at_the_head_and_long_eager_attention_in_the_blocks():
    assert both("qwen3-0.6b", micro_batch=4, seq=2048)[0].peak_phase == "backward_at_the_head"
    found = both("pythia-410m", micro_batch=2, seq=2048, attention="eager", checkpointing="full")[0]
    larger = both("pythia-410m", micro_batch=2, seq=2048, attention="eager")[0]
    assert larger.phases_bytes["backward_at_the_head"] > found.phases_bytes["backward_at_the_head"]
    scores = both("llama-2-7b", micro_batch=4, seq=4096, attention="eager", checkpointing="full")[0]
    assert scores.peak_phase == "backward_in_the_blocks"


def test_each_phase_is_the_largest_of_its_own_moments():
    asked = case("t5-base", seq=512)
    recipe = complete({"micro_batch": 8, "precision": "fp32"}, asked)
    size = sizes_of(asked, recipe, np.array([8]))
    moments = moments_of(asked.workload, Choice.of(recipe), size, np.array([False]))
    found = memory_phases(asked, recipe).phases_bytes
    assert set(found) == {m.phase.replace(" ", "_") for m in moments}
    for one, other in itertools.pairwise(sorted(found, key=lambda phase: found[phase])):
        sums = [max(m.moving.sum() for m in moments if m.phase.replace(" ", "_") == phase) for phase in (one, other)]
        assert found[other] - found[one] == pytest.approx(sums[1] - sums[0], abs=2)


def test_without_repeated_blocks_the_head_is_not_told_apart():
    found = both("convnext-large", micro_batch=4)[0]
    assert "backward" in found.phases_bytes
    assert not {"backward_at_the_head", "backward_in_the_blocks"} & set(found.phases_bytes)


# ------------------------------------------------------------------------------------------------------- buffers


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_pure"])
@pytest.mark.parametrize("seq", [128, 711, 1024])
@pytest.mark.parametrize("micro_batch", [1, 4, 7])
@pytest.mark.parametrize("name", VOCABULARY)
def test_logits_are_fp32_of_batch_by_length_by_vocabulary(name, micro_batch, seq, precision):
    """Causal models cast their logits to fp32 whatever the precision."""
    found = both(name, machine="1xB200", seq=seq, micro_batch=micro_batch, precision=precision)[0]
    assert found.logits.bytes == micro_batch * seq * VOCABULARY[name] * 4


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("bf16", 4), ("bf16_pure", 2)])
@pytest.mark.parametrize("name", MASKED)
def test_masked_models_cast_their_logits_only_under_autocast(name, precision, width):
    found = both(name, seq=512, micro_batch=8, precision=precision)[0]
    assert found.logits.bytes == 8 * 512 * MASKED[name] * width


def test_an_encoder_decoder_makes_logits_of_its_decoders_length():
    asked = replace(case("t5-base"), run=Run(seq=512, decoder_seq=100))
    found = memory_phases(asked, complete({"micro_batch": 6, "precision": "fp32"}, asked))
    assert found.logits.bytes == 6 * 100 * 32128 * 4


@pytest.mark.parametrize("name", ["vit-b16", "convnext-large"])
def test_a_classifier_makes_one_logit_a_class(name):
    found = both(name, micro_batch=32, precision="fp32")[0]
    assert found.logits.bytes == 32 * 1000 * 4
    assert found.largest_buffer.name != "logits"


def test_two_towers_compare_every_image_with_every_text():
    assert both("clip-vit-b32", micro_batch=50, precision="fp32")[0].logits.bytes == 50 * 50 * 4


def test_compiled_logits_are_as_wide_as_the_product_makes_them():
    knobs = {"seq": 1024, "micro_batch": 4, "precision": "bf16"}
    assert both("gpt2", compile="on", **knobs)[0].logits.bytes == 4 * 1024 * 50257 * 2
    assert both("gpt2", compile="off", **knobs)[0].logits.bytes == 4 * 1024 * 50257 * 4


@pytest.mark.parametrize("name", ["gpt2", "pythia-160m", "llama-2-7b", "qwen3-0.6b"])
@pytest.mark.parametrize("seq", [300, 711, 1024])
def test_eager_scores_are_fp32_of_heads_by_length_squared(name, seq):
    own = case(name).workload
    found = both(name, machine="1xB200", seq=seq, micro_batch=3, attention="eager", precision="bf16")[0]
    scores = next(b for b in found.buffers if b.name == "attention_scores")
    assert scores.bytes == 3 * own.heads * seq**2 * 4
    fused = both(name, machine="1xB200", seq=seq, micro_batch=3, attention="sdpa", precision="bf16")[0]
    assert "attention_scores" not in {b.name for b in fused.buffers}


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("fp16", 4), ("bf16_pure", 2)])
def test_the_largest_parameter_is_an_embedding(precision, width):
    found = both("llama-2-7b", micro_batch=1, seq=128, precision=precision)[0]
    assert found.largest_buffer.name == "parameter"
    assert found.largest_buffer.bytes == 32000 * 4096 * width
    assert found.largest_buffer.mib == 32000 * 4096 * width / 2**20


def product(columns, *, stack=-1, bits=32, rows=((1.0, 1, 1, 0),), launches=1.0):
    dims = (((1.0, 0, 0, 0),), rows, ((float(columns), 0, 0, 0),), ((64.0, 0, 0, 0),))
    return Op(kind="matmul", phase="forward", stack=stack, bits=bits, launches=((launches, 0, 0, 0),), dims=dims)


def loss(coefficient, bits=32):
    terms = ((8.0, 0, 0, 0), (float(coefficient), 1, 1, 0))
    return Op(kind="softmax", phase="forward", bits=bits, launches=((1.0, 0, 0, 0),), bytes=terms)


def test_the_head_is_the_largest_product_that_the_loss_reads_whole():
    small, head, wide, inside = product(768), product(5000), product(9000), product(5000, stack=0)
    assert head_of([small, wide, inside, head, loss(12 * 5000)]) == (wide, 32)
    assert head_of([small, wide, inside, head, loss(4 * 5000)]) == (head, 32)
    assert head_of([small, head, loss(4 * 5000, bits=16), loss(4 * 5000)]) == (head, 32)
    assert head_of([small, head, loss(4 * 5000, bits=16)]) == (head, 16)
    assert head_of([small, product(5000, rows=((1.0, 1, 0, 0),)), loss(12 * 5000)]) == (small, 32)
    assert head_of([small, head]) == (None, 0)
    assert head_of([inside, loss(12 * 5000)]) == (None, 0)


def test_a_model_without_a_loss_has_no_logits_and_still_a_largest_buffer(make_workload):
    points = (
        MemoryPoint(
            label="end of forward", activations=((100.0, 1, 1, 0),), block_activations=((),), block_gradients=((),)
        ),
    )
    variant = Variant(numerics="amp", attention="sdpa", checkpointed=False, ops=(product(8, bits=16),), memory=points)
    bare = make_workload(stacks=(Stack(name="s", depth=3),))
    asked = Case(workload=replace(bare, variants=(variant,)), profile=case("gpt2").profile)
    found = memory_phases(asked, complete({"micro_batch": 2, "seq": 64, "precision": "bf16"}, asked))
    assert found.logits is None
    assert [b.name for b in found.buffers] == ["parameter", "head_product"]
    assert found.buffers[1].bytes == 2 * 64 * 8 * 2
    assert list(found.phases_bytes) == ["end_of_forward", "optimizer_step"]
    assert found.attention_bytes.keys() == {"sdpa"}


def test_presets_are_all_there():
    assert {*VOCABULARY, *MASKED} <= set(preset_names())
    assert all(load_preset(name).task == "causal_lm" for name in VOCABULARY)
