"""The parts of the accuracy page that are words alone."""

from __future__ import annotations

HEAD = """# Accuracy

Made by `make accuracy` from records in `profiles/measured/1xH200/`, whose README says how each file came about. No figure
is typed in by hand outside this head, "Forms that were tried" and the last section. Errors are (predicted − measured) / measured.

`truth.jsonl` is the ground truth: 400 recipes of six models on one H200 (Pythia-160M and 410M, Llama-3.2-1B with its grouped heads and
128k vocabulary, BERT-large, T5-base, ViT-L), drawn with a seed and committed before anything was measured: one
exhaustive cell (Pythia-410M at length 2048 and global batch 48: ten micro-batches, three precisions, two attentions, three
kinds of checkpointing) and random recipes elsewhere, on both sides of the memory limit. Time ran out before the last six of the
cell (all fp16 with eager attention), eleven random ones and eight compiled ones. About a quarter of the runs had too few windows to
be known as steady. `truth_repeats.jsonl` holds 27 second runs, 26 of them of recipes that had a first one.

**What has been looked at.** The model's form was mended on these very records, on both halves of the draw, and so was the choice of
what to measure: each row scored here was not fitted, but none is unseen by the people who wrote the model. The tables
"held out before" and "development before" were taken earlier, on other hosts, and were looked at again for the forms below. Typical
constants in the data-sheet prior come from this same GPU type, so "no run at all: datasheet" flatters it; the probes were taken on
a slower host, whose dispatch explains most of what they are off by.

The first table from the command line:

    paceline evaluate profiles/measured/1xH200/truth.jsonl --prior probes --calibrate 30 --choose adaptive \\
        --repeats profiles/measured/1xH200/truth_repeats.jsonl --baselines --ablate
"""

NOTES = """## Forms that were tried

Scores of the step each was tried at, on `truth.jsonl`; `docs/log.md` has the rest.

| form | score | kept |
|---|---|---|
| strided and concatenating work at one rate by bytes | GPU-bound rows 2.0 % in sample; Llama left out 7.4 % | no |
| the same by width: such kernels pay by the element, not by the byte | 1.5 %; 4.4 % | yes |
| attention with a trained bias as a fused kernel with rates of its own | T5: time within 7 %, memory 39 to 63 % low, three false “fits” | no |
| the same as torch's math kernel, which is what runs | T5: memory within 0.5 % without checkpointing, no false “fits” | yes |
| host time by kind of operation and phase (45 costs, non-negative) | host-bound rows 14.2 % in sample instead of 16.6 % | no |
| p-norm of GPU and host with exponent 4, 6, 10 | all rows 6.9, 7.3, 6.8 %; earlier held-out rows 5.9, 5.5, 5.4 % | 6 |
| rows weighed by 4, 8, 12 % of wandering of the host | GPU-bound 2.7, 2.6, 2.5 %; earlier held-out rows 4.9, 5.5, 6.1 % | 6 % |
"""

LIMITS = """## What these figures do not say

- Steps that the host decides wander by 10 to 35 % between processes, and by as much within one over seconds, on these rented virtual
  machines. More costs for the host do not help: even 45 of them, fitted to the rows themselves, leave 14 %. An interval is what can
  be said there.
- Leaving a model out misses its aim on rows that the host decides, and for BERT and T5 on GPU-bound rows too.
- Outside the exhaustive cell GPU-bound rows miss their aim: 30 runs for six models are few, and those rows are small and near the crossover.
- Intervals hold less than they should for compiled runs, long sequences and models left out, and more elsewhere.
- The order of rows in the table moves the choice of runs, and with it coverage by five points and p95 by one.
- Compiled rows are few: seven shapes, which took their kernels from a cache that several processes had filled at once, so their
  `compile_s` is not recorded. Their interval is widened by 7 %.
- With checkpointing, T5's memory is over-predicted by up to 18 %, and compiled eager attention's by 13 %; compiled BERT's is 5 % and compiled T5's 4 % low. One compiled
  BERT, run cold among others and not shipped, needed twice its prediction; it is not understood.
- Depth and width curves are predictions; no shallow or narrow version of a model was measured.
- One GPU type. Other GPUs answer from their data sheets, with wide intervals and the word `datasheet`.
"""
