"""Megatron's rules: which configurations it accepts, and why it refuses the others."""

import pytest

from pp_lab.plan import Megatron

OVERLAP = dict(
    pipeline_model_parallel_size=4,
    virtual_pipeline_model_parallel_size=2,
    expert_model_parallel_size=8,
    overlap_moe_expert_parallel_comm=True,
)


@pytest.mark.parametrize(
    "accepted",
    [
        {},
        OVERLAP,  # the overlap does not need the weight gradient to be delayed
        {**OVERLAP, "delay_wgrad_compute": True},
        {**OVERLAP, "moe_token_dispatcher_type": "flex", "mtp_num_layers": 1},
        {**OVERLAP, "recompute_granularity": "selective", "bf16": False, "fp16": True},
        dict(expert_model_parallel_size=8, overlap_moe_expert_parallel_comm=True),  # p=1
        dict(pipeline_model_parallel_size=4, virtual_pipeline_model_parallel_size=2,
             overlap_p2p_comm=True),
        dict(pipeline_model_parallel_size=4, virtual_pipeline_model_parallel_size=2,
             num_microbatches=14, microbatch_group_size_per_vp_stage=5),
    ],
)  # fmt: skip
def test_what_megatron_accepts_breaks_nothing(accepted):
    assert Megatron(**accepted).broken() == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (dict(expert_model_parallel_size=1), "expert_model_parallel_size=1 there is none"),
        (dict(moe_token_dispatcher_type="allgather"), "use alltoall or flex"),
        (dict(bf16=False), "bf16 and fp16 only"),
        (dict(recompute_granularity="full"), "use selective recompute"),
        (dict(moe_shared_expert_overlap=True), "choose one of the two"),
        (dict(mtp_num_layers=2), "one multi-token-prediction layer at most, not 2"),
        (dict(virtual_pipeline_model_parallel_size=None), "pair a forward with its own backward"),
        (
            dict(overlap_moe_expert_parallel_comm=False, delay_wgrad_compute=True),
            "delay_wgrad_compute needs overlap",
        ),
        (dict(microbatch_group_size_per_vp_stage=2), "must be from p=4"),
        (dict(microbatch_group_size_per_vp_stage=9), "to m=8"),
        (dict(num_microbatches=10), "the last group would have 2 micro-batches"),
        (dict(num_microbatches=0), "num_microbatches=0: give a whole number"),
        (dict(pipeline_model_parallel_size="4"), "pipeline_model_parallel_size='4'"),
    ],
)
def test_each_rule_is_broken_by_itself_and_named(change, sentence):
    said = Megatron(**{**OVERLAP, **change}).broken()
    assert len(said) == 1 and sentence in said[0], said


def test_p2p_overlap_needs_interleaving():
    (said,) = Megatron(pipeline_model_parallel_size=4, overlap_p2p_comm=True).broken()
    assert "overlap_p2p_comm is for the interleaved schedule only" in said


def test_every_broken_rule_is_named_at_once():
    config = {**OVERLAP, "expert_model_parallel_size": 1, "bf16": False, "mtp_num_layers": 3}
    assert len(Megatron(**config).broken()) == 3
