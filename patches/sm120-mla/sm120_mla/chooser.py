"""Block sizes, stages and splits, from the shape and the GPU. Plain functions on numbers, no torch.

The table is what compiles within the shared memory of capability 12.0 (101,376 bytes for one program) without register
spill; `scripts/check-mla-compile` compiles every row of it for 12.0, 9.0 and 10.0 and holds it to that.
"""

from dataclasses import dataclass

LATENT = 512
LAYOUTS = ("bf16", "fp8", "packed")

# bytes of shared memory that one program may use, by capability
SHARED_LIMIT = {(12, 0): 101_376, (12, 1): 101_376, (9, 0): 232_448, (10, 0): 232_448, (10, 3): 232_448}
SHARED_ASSUMED = 101_376


@dataclass(frozen=True)
class Config:
    """How one launch is cut.

    block_h: query heads of one program. block_n: rows of one step. warps, stages: Triton's num_warps and num_stages.
    """

    block_h: int
    block_n: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Launch:
    config: Config
    splits: int


def head_block(heads: int) -> int:
    """16 is the least that tensor cores take; 32 halves the reads where a rank has more heads than that."""
    return 16 if heads <= 16 else 32


def config_for(heads: int, layout: str) -> Config:
    """The blocks for a number of query heads on this rank and a cache layout (one of LAYOUTS)."""
    if not 1 <= heads <= 128:
        raise ValueError(f"{heads} query heads: the kernels take 1 to 128")
    if layout not in LAYOUTS:
        raise ValueError(f"cache layout {layout!r}: the kernels take {', '.join(LAYOUTS)}")
    return CONFIGS[head_block(heads), layout]


CONFIGS: dict[tuple[int, str], Config] = {
    (16, "bf16"): Config(16, 32, 4, 2),
    (16, "fp8"): Config(16, 32, 8, 2),
    (16, "packed"): Config(16, 32, 8, 2),
    (32, "bf16"): Config(32, 32, 8, 2),
    (32, "fp8"): Config(32, 32, 8, 2),
    (32, "packed"): Config(32, 32, 8, 2),
}


def splits_for(tokens: int, heads: int, longest: int, sms: int, config: Config) -> int:
    """How many programs share one token's rows: enough for two programs on each SM, each with two steps at least.

    Depends on shapes alone, never on what a list holds, so a captured CUDA graph stays right.
    """
    programs = max(1, tokens * -(-heads // config.block_h))
    wanted = -(-2 * sms // programs)
    useful = max(1, longest // (2 * config.block_n))
    return max(1, min(wanted, useful))


def choose(tokens: int, heads: int, longest: int, sms: int, layout: str) -> Launch:
    """The launch for `tokens` query tokens of `heads` heads over at most `longest` rows, on `sms` SMs."""
    config = config_for(heads, layout)
    return Launch(config, splits_for(tokens, heads, longest, sms, config))


def workspace_slots(heads: int, sms: int) -> int:
    """The most `tokens * splits` that `choose` returns with more than one split: what a workspace must hold.

    programs * ceil(2 sms / programs) < 2 sms + programs, and there is one split from programs = 2 sms on.
    """
    return -(-4 * sms // -(-heads // head_block(heads)))
