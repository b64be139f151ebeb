"""Networks and clusters that are used as examples, with where their numbers come from."""

from dataclasses import replace

from .network import Cluster, Network

# 80 GB GPUs of which 72 GiB may be used. What they achieve of their FLOP/s, and of their links'
# bytes/s, are assumptions, in round numbers.
A100 = Cluster(gpus=1024, flops=2e14, inside=240e9, across=25e9)
H800 = Cluster(gpus=2048, flops=5e14, inside=160e9, across=50e9)

# Table 1 of PTD-P (arXiv:2104.04473) has 146B and 530B; 175B is GPT-3.
GPT_146B = Network(layers=80, hidden=12288, heads=96, sequence=2048, vocab=51200)
GPT_175B = replace(GPT_146B, layers=96)
GPT_530B = replace(GPT_146B, layers=105, hidden=20480, heads=128)

# Like DeepSeek-V3 (arXiv:2412.19437), but for its attention.
MOE_671B = Network(
    layers=61, hidden=7168, heads=128, sequence=4096, vocab=129280, ffn=18432, gated=True,
    tied=False, experts=256, top_k=8, expert_ffn=2048, shared=1, dense=3, nodes=4,
)  # fmt: skip
