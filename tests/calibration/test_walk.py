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

REFUSED: dict[str, str] = {
}
"""Types that no trace can show yet, by a phrase of the reason given."""


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


@pytest.mark.slow
def test_at_least_four_in_five_types_trace(found: dict[str, dict[str, Any]]) -> None:
    traced = [name for name, entry in found.items() if "refused" not in entry]
    assert len(found) > 300
    assert len(traced) >= 0.8 * len(found)


@pytest.mark.slow
def test_every_refusal_is_a_known_one(found: dict[str, dict[str, Any]]) -> None:
    from transformers import __version__

    refused = {name: entry["refused"] for name, entry in found.items() if "refused" in entry}
    if not __version__.startswith("5.24."):
        pytest.skip(f"the list is of transformers 5.24, and {__version__} is installed")
    unknown = {n: r for n, r in refused.items() if n not in REFUSED or REFUSED[n] not in r}
    assert not unknown
    assert not [name for name in REFUSED if name not in refused]


@pytest.mark.slow
def test_what_traces_has_parameters_products_and_memory(found: dict[str, dict[str, Any]]) -> None:
    """A product has one product in the backward pass per operand that needs a gradient: one or two."""
    for name, entry in found.items():
        if "refused" not in entry:
            assert entry["params"] > 0, name
            assert entry["flops"] > 0, name
            assert entry["moments"] > 0, name
            assert 1.5 <= entry["backward_per_forward"] <= 2.2, name



if __name__ == "__main__":
    main()
