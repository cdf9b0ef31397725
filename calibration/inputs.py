"""Synthetic training inputs for every task, in the shapes a recipe fixes."""

from __future__ import annotations

from typing import Any

from profiles.schema import Preset


def make_inputs(
    preset: Preset, config: Any, micro_batch: int, seq: int, decoder_seq: int, device: str
) -> dict[str, Any]:
    """Random keyword arguments of one forward pass that returns a loss.

    Token inputs are int64 of shape (micro_batch, seq); labels are tokens too, without padding, and no attention mask is
    passed: packed pre-training. Pixels are fp32 of shape (micro_batch, channels, height, width).
    """
    import torch

    def tokens(vocab: int, length: int) -> Any:
        return torch.randint(0, vocab, (micro_batch, length), device=device)

    if preset.task == "image_classification":
        labels = torch.randint(0, config.num_labels, (micro_batch,), device=device)
        return {"pixel_values": _pixels(config, micro_batch, device), "labels": labels}
    if preset.task == "contrastive":
        text = config.text_config
        return {
            "input_ids": tokens(text.vocab_size, text.max_position_embeddings),
            "pixel_values": _pixels(config.vision_config, micro_batch, device),
            "return_loss": True,
        }
    vocab = config.get_text_config().vocab_size
    if preset.task == "seq2seq_lm":
        return {"input_ids": tokens(vocab, seq), "labels": tokens(vocab, decoder_seq)}
    return {"input_ids": tokens(vocab, seq), "labels": tokens(vocab, seq)}


def _pixels(config: Any, micro_batch: int, device: str) -> Any:
    import torch

    size = getattr(config, "image_size", 224)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.rand(micro_batch, getattr(config, "num_channels", 3), height, width, device=device)
