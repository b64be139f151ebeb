"""Which of Megatron's rules about pipelines and overlap a configuration breaks.

From schedules.py, transformer_config.py and arguments at Megatron-LM commit d98e8a64.
"""

from dataclasses import dataclass

NUMBERS = (
    "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "microbatch_group_size_per_vp_stage", "num_microbatches", "expert_model_parallel_size",
    "mtp_num_layers",
)  # fmt: skip


@dataclass(frozen=True)
class Megatron:
    """The part of a Megatron configuration that its pipeline and overlap rules speak of.

    Names and meaning are Megatron's; virtual_pipeline_model_parallel_size is the number of
    chunks per rank (v), None without interleaving; num_microbatches is m;
    microbatch_group_size_per_vp_stage is N, by default p.
    """

    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    microbatch_group_size_per_vp_stage: int | None = None
    num_microbatches: int = 8
    overlap_p2p_comm: bool = False
    expert_model_parallel_size: int = 1
    moe_token_dispatcher_type: str = "alltoall"
    overlap_moe_expert_parallel_comm: bool = False
    delay_wgrad_compute: bool = False
    moe_shared_expert_overlap: bool = False
    recompute_granularity: str | None = None
    mtp_num_layers: int | None = None
    bf16: bool = True
    fp16: bool = False

    def broken(self) -> list[str]:
        """A sentence for each rule that this configuration breaks; empty where it is accepted."""
        p, v = self.pipeline_model_parallel_size, self.virtual_pipeline_model_parallel_size
        m, group = self.num_microbatches, self.microbatch_group_size_per_vp_stage
        said = []

        def rule(holds, sentence):
            if not holds:
                said.append(sentence)

        for name in NUMBERS:
            value, least = getattr(self, name), 0 if name == "mtp_num_layers" else 1
            rule(
                value is None or type(value) is int and value >= least,
                f"{name}={value!r}: give a whole number, {least} at least",
            )
        if said:
            return said
        interleaved = v is not None and v > 1
        rule(not interleaved or p > 1, f"{v} chunks per rank need more than one pipeline rank")
        rule(
            not self.overlap_p2p_comm or interleaved,
            "overlap_p2p_comm is for the interleaved schedule only: set "
            "virtual_pipeline_model_parallel_size, or the sends of plain 1F1B stay fused",
        )
        if interleaved:
            n = p if group is None else group
            rule(
                p <= n <= m,
                f"the micro-batch group size is {n}, and must be from p={p} (with fewer, a "
                f"chunk's turn comes too early) to m={m}",
            )
            rule(
                not 0 < m % n < p,
                f"the last group would have {m % n} micro-batches ({m} in groups of {n}), fewer "
                f"than the {p} ranks: choose m a multiple of {n}",
            )
        if self.delay_wgrad_compute:
            rule(
                self.overlap_moe_expert_parallel_comm,
                "delay_wgrad_compute needs overlap_moe_expert_parallel_comm: without it nobody "
                "would run the weight gradients (the overlap itself does not need it)",
            )
        if self.overlap_moe_expert_parallel_comm:
            rule(
                self.expert_model_parallel_size > 1,
                "the overlap hides an all-to-all between expert-parallel ranks: with "
                "expert_model_parallel_size=1 there is none",
            )
            rule(
                self.moe_token_dispatcher_type in ("alltoall", "flex"),
                f"the {self.moe_token_dispatcher_type} dispatcher has no all-to-all to put on a "
                "stream of its own: use alltoall or flex",
            )
            rule(self.bf16 or self.fp16, "the overlap supports bf16 and fp16 only")
            rule(
                self.recompute_granularity != "full",
                "full recompute runs a layer as one piece, and the overlap cuts it into nodes: "
                "use selective recompute",
            )
            rule(
                not self.moe_shared_expert_overlap,
                "moe_shared_expert_overlap hides shared experts behind the same all-to-all: "
                "choose one of the two",
            )
            rule(
                (self.mtp_num_layers or 0) <= 1,
                f"the overlap takes one multi-token-prediction layer at most, not "
                f"{self.mtp_num_layers}",
            )
            rule(
                p == 1 or interleaved,
                f"with p={p} the overlap needs chunks (virtual_pipeline_model_parallel_size > 1): "
                "on plain 1F1B the last rank would pair a forward with its own backward",
            )
        return said
