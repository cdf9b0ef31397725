"""Every language and image model type that transformers registers either traces or is refused with a known reason.

Types are built from their class's own defaults, cut to three layers, and traced in disposable processes: this file is
also the script that such a process runs.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from calibration.building import quiet
from calibration.config_files import DEPTH_FIELDS, class_table
from calibration.trace import trace
from profiles.schema import Config, Preset, Task
from simulator.outlook import model_flops

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LAYERS = 3
LIMIT_S = 60
TABLES: dict[Task, str] = {
    "causal_lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked_lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq_lm": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "image_classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}
MORE: dict[str, Config] = {
    "deepseek_v2": {"num_experts_per_tok": 6, "moe_intermediate_size": 1408},
    "dots1": {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 48},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
}
"""What a class's defaults leave out or get wrong."""


# ------------------------------------------------------------------------------------------ one type, in a process


def shrink(config: Any) -> Config:
    """The changes that leave three layers: depths, and lists by layer cut to their first and last entries."""
    facts = vars(config)
    depths = {name: value for name, value in facts.items() if name in DEPTH_FIELDS and type(value) is int}
    changes: Config = {name: LAYERS for name, value in depths.items() if value > LAYERS}
    for name, value in facts.items():
        if isinstance(value, list | tuple) and len(value) > LAYERS and len(value) in depths.values():
            changes[name] = [*value[: LAYERS - 1], value[-1]]
        elif hasattr(value, "to_dict") and hasattr(value, "model_type"):
            changes[name] = {"model_type": value.model_type, **shrink(value)}
    return changes


def small(model_type: str, task: Task) -> Preset:
    from transformers import AutoConfig

    with quiet():
        config = AutoConfig.for_model(model_type)
    facts = {"model_type": model_type, **shrink(config), **MORE.get(model_type, {})}
    if task == "image_classification":
        facts["num_labels"] = 1000
    if task == "seq2seq_lm":
        facts |= {n: 0 for n in ("decoder_start_token_id", "pad_token_id") if getattr(config, n, None) is None}
    return Preset(
        name=model_type, task=task, config=facts, params=0, seq=512, source="test", date="2026-11-30",
        decoder_seq=512 if task == "seq2seq_lm" else None,
    )  # fmt: skip


def look(name: str) -> dict[str, Any]:
    """What the trace of one ``task/type`` shows, or why there is none."""
    task, model_type = name.split("/")
    signal.alarm(LIMIT_S)
    try:
        workload = trace(
            small(model_type, task), numerics=("fp32",), attentions=("eager",), checkpointing=(False,)  # type: ignore[arg-type]
        )  # fmt: skip
    except Exception as error:
        return {"name": name, "refused": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    finally:
        signal.alarm(0)
    work: Counter[str] = Counter()
    for op in workload.variants[0].ops:
        blocks = workload.stacks[op.stack].depth if op.stack >= 0 else 1
        for coefficient, i, j, k in op.flops:
            work[op.phase] += blocks * coefficient * 8**i * 512 ** (j + k)
    return {
        "name": name, "params": workload.params, "flops": model_flops(workload, 512, 512),
        "backward_per_forward": work["backward"] / max(work["forward"], 1),
        "moments": len(workload.variants[0].memory),
    }  # fmt: skip


def main() -> None:
    logging.disable(logging.CRITICAL)
    for name in sys.argv[1:]:
        sys.stdout.write(json.dumps(look(name)) + "\n")
        sys.stdout.flush()


# ------------------------------------------------------------------------------------------------------- the walk

DATA, LENGTHS = "DataDependentOutputException", "Expected input batch_size"
ALONE, ABSENT = "takes no part in a step on these inputs alone", "requires the"
CHUNKS = "in chunks or with something added to it"
REFUSED: dict[str, str] = {
    # Numbers that only a real run knows decide what is computed: padding, attention windows, how experts are chosen.
    "causal_lm/blt": "nonzero",
    "causal_lm/jetmoe": DATA,
    "causal_lm/longcat_flash": "nonzero",
    "causal_lm/xlm": DATA,
    "masked_lm/flaubert": DATA,
    "masked_lm/longformer": DATA,
    "masked_lm/xlm": DATA,
    "seq2seq_lm/led": DATA,
    "seq2seq_lm/prophetnet": DATA,
    "seq2seq_lm/t5gemma2": "nonzero",
    # More than words are needed: images, sound, entities.
    "causal_lm/gemma3": ALONE,
    "causal_lm/gemma4_unified_assistant": "inputs_embeds and shared_kv_states",
    "causal_lm/git": LENGTHS,
    "causal_lm/got_ocr2": ALONE,
    "causal_lm/moss_transcribe_diarize": ALONE,
    "causal_lm/phi4_multimodal": ALONE,
    "masked_lm/luke": "less than half of its parameters",
    "masked_lm/modernvbert": ALONE,
    "masked_lm/perceiver": LENGTHS,
    "masked_lm/ultravbert": ALONE,
    "seq2seq_lm/voxtral_realtime": "input_features",
    "image_classification/shieldgemma2": "input_ids",
    # Decoders with an audio encoder: text goes in as a whole, so there is no second length.
    "seq2seq_lm/audioflamingo3": LENGTHS,
    "seq2seq_lm/glmasr": LENGTHS,
    "seq2seq_lm/granite_speech": LENGTHS,
    "seq2seq_lm/granite_speech_plus": LENGTHS,
    "seq2seq_lm/moss_transcribe_diarize": LENGTHS,
    "seq2seq_lm/musicflamingo": LENGTHS,
    "seq2seq_lm/nemo_speechlm": LENGTHS,
    "seq2seq_lm/omniasr": LENGTHS,
    "seq2seq_lm/qwen2_audio": LENGTHS,
    "seq2seq_lm/qwen3_asr": LENGTHS,
    "seq2seq_lm/vibevoice_asr": LENGTHS,
    "seq2seq_lm/voxtral": LENGTHS,
    # Recurrences in chunks of a fixed length, and a prompt of fixed length before the text.
    "causal_lm/bailing_hybrid": CHUNKS,
    "causal_lm/cpmant": CHUNKS,
    "causal_lm/kimi_linear": CHUNKS,
    "causal_lm/mamba2": CHUNKS,
    "causal_lm/nemotron_h": CHUNKS,
    # Inputs of a form of their own.
    "causal_lm/xmod": "Input language unknown",
    "masked_lm/xmod": "Input language unknown",
    "seq2seq_lm/fsmt": LENGTHS,
    "image_classification/imagegpt": "input_ids",
    "image_classification/siglip2": "same reduction dim",
    # The class's defaults do not build this head.
    "causal_lm/cohere_compass_text": "cannot be built",
    "causal_lm/dbrx": "cannot be built",
    "causal_lm/gemma3n_text": "cannot be built",
    "causal_lm/gemma4_assistant": "validation error",
    "causal_lm/lfm2_moe": "cannot be built",
    "causal_lm/musicgen": "cannot be built",
    "causal_lm/musicgen_melody": "cannot be built",
    "causal_lm/qwen4_exp": "cannot be built",
    "causal_lm/qwen4_exp_text": "cannot be built",
    "masked_lm/reformer": "cannot be built",
    "seq2seq_lm/encoder-decoder": ALONE,
    # The class itself cannot be followed: no loss, weights converted on the way, blocks that are not called.
    "image_classification/pp_lcnet": "no attribute 'loss'",
    "seq2seq_lm/switch_transformers": "Couldn't swap",
    "masked_lm/squeezebert": "are not called as modules",
    # An optional package is missing.
    "causal_lm/gemma3n": ABSENT,
    "image_classification/dinat": ABSENT,
    "image_classification/timm_wrapper": ABSENT,
}
"""Types that no trace can show yet, by a phrase of the reason given."""
BACKWARD: dict[str, float] = {
    "causal_lm/hrm_text": 1.4,  # all cycles but the last run without gradients
    "causal_lm/reformer": 3.0,  # reversible: the backward pass recomputes
}
"""Products in the backward pass per product in the forward pass, where that is not about two."""


def names() -> list[str]:
    return [f"{task}/{model_type}" for task, table in TABLES.items() for model_type in class_table(table)]


def walk(todo: list[str]) -> dict[str, dict[str, Any]]:
    """What every type shows; one that takes its process down is noted, and the rest goes on in a new process."""
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    found: dict[str, dict[str, Any]] = {}
    while len(found) < len(todo):
        rest = [name for name in todo if name not in found]
        command = [sys.executable, "-W", "ignore", __file__, *rest]
        run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root, check=False)
        found |= {entry["name"]: entry for entry in map(json.loads, run.stdout.splitlines())}
        if run.returncode:
            dead = next(name for name in todo if name not in found)
            found[dead] = {"name": dead, "refused": f"the process ended with {run.returncode}"}
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return walk(names())


def test_at_least_four_in_five_types_trace(found: dict[str, dict[str, Any]]) -> None:
    traced = [name for name, entry in found.items() if "refused" not in entry]
    assert len(found) > 300
    assert len(traced) >= 0.8 * len(found)


def test_every_refusal_is_a_known_one(found: dict[str, dict[str, Any]]) -> None:
    from transformers import __version__

    refused = {name: entry["refused"] for name, entry in found.items() if "refused" in entry}
    if not __version__.startswith("5.24."):
        pytest.skip(f"the list is of transformers 5.24, and {__version__} is installed")
    unknown = {n: r for n, r in refused.items() if n not in REFUSED or REFUSED[n] not in r}
    assert not unknown
    assert not [name for name, reason in REFUSED.items() if name not in refused and reason != ABSENT]


def test_what_traces_has_parameters_products_and_memory(found: dict[str, dict[str, Any]]) -> None:
    """A product has one product in the backward pass per operand that needs a gradient: one or two."""
    for name, entry in found.items():
        if "refused" not in entry:
            assert entry["params"] > 0, name
            assert entry["flops"] > 0, name
            assert entry["moments"] > 0, name
            low, high = (BACKWARD[name] - 0.1, BACKWARD[name] + 0.1) if name in BACKWARD else (1.5, 2.2)
            assert low <= entry["backward_per_forward"] <= high, name


if __name__ == "__main__":
    main()
