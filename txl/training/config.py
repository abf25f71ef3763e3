"""How a model is trained, as a dataclass whose fields are the flags of train.py."""

import re
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from txl.config import (
    ATTN_IMPL_HELP,
    DEVICE_HELP,
    KEEP_MIB,
    OWN,
    SEED,
    SIZE,
    AttnImpl,
    Dtype,
    NamesParts,
    as_dict,
    option,
    require,
)
from txl.registry import PARTS_OF_TRAINING, default_of, settings_of_package


@dataclass(frozen=True, kw_only=True, init=False)
class TrainConfig(NamesParts):
    """How the model is trained."""

    parts = PARTS_OF_TRAINING
    work_dir: str = option("runs/txl", "run directory: checkpoints and logs", section="run")
    resume: bool | int = option(
        False,
        "continue from the last complete checkpoint in --work_dir, if there is one; with a number,"
        " from that step's",
    )
    init_from: str | None = option(
        None,
        "start from the weights, vocabulary and lengths of this trained model (whatever eval.py"
        " takes as --work_dir), with a new optimizer and schedule",
    )
    vocabulary: str | None = option(
        None,
        "file of the words of another program's checkpoint, where they are not beside the weights",
        when=("init_from",),
    )
    overwrite: bool = option(
        False, "start over in a directory that holds a run; its checkpoints are deleted"
    )
    seed: int = option(1111, "random seed", **SEED)
    max_step: int = option(100000, "number of updates", minimum=1)
    minutes: float | None = option(
        None,
        "train for this time in all, from the start of the program to the end of the last"
        " evaluation, in place of --max_step updates: the learning rate follows the clock, and an"
        " evaluation comes at every tenth",
        above=0,
        maximum=1e7,
    )
    max_hours: float | None = option(
        None, "save and stop this many hours after this start", above=0
    )
    log_interval: int = option(200, "updates between two log lines", minimum=1)
    save_interval: int | None = option(
        None, "updates between two checkpoints (not given: --eval_interval)", minimum=1
    )
    async_save: bool = option(False, "write checkpoints in the background, from a copy in host RAM")
    keep_last: int = option(1, "checkpoints kept besides the best one", minimum=1)
    target_perplexity: float | None = option(
        None, "exit with status 1 if the best valid perplexity is above this", above=0
    )
    target_throughput: float | None = option(
        None, "exit with status 1 if training is slower than this, in tokens per second", above=0
    )
    batch_size: int = option(
        60, "streams of text read in parallel, over all processes", section="batch", **SIZE
    )
    local_batch_size: int | None = option(
        None, "streams per process, instead of --batch_size", **SIZE
    )
    batch_chunk: int = option(1, "compute the batch in this many parts, to save memory", **SIZE)
    memory_parts: int | None = option(
        None,
        "read a segment in this many parts, through which the gradient of what is remembered flows"
        " (not given: 4 with memories that learn from it what to write, else 1)",
        **SIZE,
    )
    draw_mem_len: int = option(
        0,
        "draw the length of the memory anew every so many updates, from 0 to --mem_len (0: it is"
        " always --mem_len)",
        minimum=0,
    )
    varlen: bool = option(False, "segments of varying length, drawn as in the 2019 code")
    roll: bool = option(False, "rotate each stream by a random offset in every epoch")
    reset: Literal["never", "document"] = option(
        "never",
        "document: tokens attend to their own document only, which begins in WikiText at a heading"
        " like = Title =",
    )
    optim: str = option(
        "adam",
        "muon: for matrices of the layers that mix features of hidden states; adamw for the rest",
        section="optimizer",
    )
    train: str = option(
        "all",
        "what learns; memory: the weights of the memory alone; last:2: the last 2 layers and the"
        " memory",
    )
    lr: float = option(0.00025, "peak learning rate", above=0)
    weight_decay: float = option(0.0, "weight decay", minimum=0)
    ema: float = option(
        0.0,
        "decay of an exponential moving average of the weights, which is evaluated and saved in"
        " their place (0: none); after n updates it is at most (1 + n) / (10 + n)",
        minimum=0,
        below=1,
    )
    clip: float = option(
        0.25, "largest norm of the gradient (0 or inf: no clipping)", minimum=0, finite=False
    )
    on_nonfinite: Literal["stop", "skip"] = option(
        "stop", "what to do when a gradient is not finite"
    )
    max_nonfinite: int = option(
        10,
        "largest number of consecutive updates to skip",
        when=("on_nonfinite", "skip"),
        minimum=1,
    )
    scheduler: str = option(
        "cosine",
        "dev_perf: lower the rate when validation stops improving",
        section="learning rate schedule",
    )
    max_step_scheduler: int | None = option(
        None, "length of the schedule, in updates (not given: --max_step)", minimum=1
    )
    warmup_step: int = option(
        0, "updates over which the learning rate rises linearly to --lr", minimum=0
    )
    warmup_convention: Literal["txl", "original"] = option(
        "txl",
        "txl: update k of the warmup uses lr k/warmup_step; original: the first update uses lr,"
        " later ones lag",
    )
    dropout: float = option(
        0.0,
        "dropout of embeddings, positions, sub-layer outputs and the last hidden states",
        section="regularization",
        minimum=0,
        below=1,
    )
    dropatt: float = option(0.0, "dropout of the attention probabilities", minimum=0, below=1)
    label_smoothing: float = option(
        0.0,
        "share of the target spread over all classes of a softmax; logged losses are without it",
        minimum=0,
        below=1,
    )
    eval_interval: int = option(
        4000,
        "updates between two evaluations on the valid split, each with a checkpoint",
        section="evaluations during training",
        minimum=1,
    )
    eval_tgt_len: int | None = option(
        None,
        "their tgt_len; mem_len grows by the difference to --tgt_len (not given: --tgt_len)",
        minimum=1,
    )
    eval_batch_size: int | None = option(
        None,
        "their streams; the result depends on them only with --recurrence same and memories that"
        " look back without limit, where it is 1 by default (not given: 10, at least one per"
        " process)",
        minimum=1,
    )
    max_eval_steps: int = option(
        -1, "their largest number of segments, warmup included (-1: the whole split)", minimum=-1
    )
    eval_test: bool = option(False, "evaluate the best checkpoint on the test split at the end")
    sample_length: int = option(
        50,
        "tokens of text that are generated at each evaluation, for TensorBoard (0: none)",
        minimum=0,
    )
    init: Literal["normal", "uniform"] = option(
        "normal", "distribution the weights are drawn from", section="initialization"
    )
    init_range: float = option(
        0.1, "weights are from U(-init_range, init_range)", when=("init", "uniform"), minimum=0
    )
    init_std: float = option(
        0.02, "weights are from N(0, init_std)", when=("init", "normal"), minimum=0
    )
    proj_init_std: float = option(
        0.01, "projections of embeddings and softmax are from N(0, proj_init_std)", minimum=0
    )
    device: str = option("auto", DEVICE_HELP, section="speed and memory")
    dtype: Dtype = option(
        "auto",
        "number type of the matrix products; auto: bfloat16 on a GPU or CPU that is made for it,"
        " else float32",
    )
    tf32: bool = option(False, "float32 products on a GPU may use TF32")
    compile: bool = option(False, "compile the layers with torch.compile")
    cuda_graph: bool | Literal["auto"] = option(
        False,
        "record an update once and repeat it as one CUDA graph: faster where a GPU waits for its"
        " kernels to be launched; auto: where one process trains on one GPU and that can be done",
    )
    attn_impl: AttnImpl = option("auto", ATTN_IMPL_HELP)
    attn_keep_mib: int = option(
        KEEP_MIB,
        "fused attention on a GPU: MiB for the gradients of the logits, which the backward pass"
        " then computes once instead of three times, as many sequences at a time as fit (0: never)",
        when=("attn_impl", "auto", "fused"),
        minimum=0,
    )
    shard: bool = option(
        False, "keep weights, gradients and optimizer state in shards over the processes (FSDP2)"
    )
    recompute: bool = option(
        False, "recompute the activations of each layer in the backward pass, to save memory"
    )
    ff_chunk: int = option(
        0,
        "tokens of a segment that the feed-forward net computes at a time, to save memory (0: all)",
        minimum=0,
    )
    swap_mem: bool = option(False, "keep the memory of earlier segments in host RAM")
    redraw_interval: int = option(
        1000,
        "updates between two draws of the random features or rotations (0: drawn once)",
        minimum=0,
    )
    timeout_s: float = option(600.0, "seconds to wait for another process", above=0, maximum=1e9)
    own: dict[str, Any] = field(default_factory=dict, metadata=OWN)

    def __post_init__(self) -> None:
        for registry in self.parts:
            registry.require_known(getattr(self, registry.flag))
        super().__post_init__()
        require(
            re.fullmatch(r"all|memory|last:[1-9]\d{0,3}", self.train) is not None,
            f"--train {self.train}: no such choice; there are all, memory and last:N, such as"
            " last:2",
        )
        if self.clip == inf:
            object.__setattr__(self, "clip", 0.0)
        require(
            isinstance(self.resume, bool) or self.resume > 0,
            f"--resume {self.resume}: not a step; steps count from 1",
        )
        require(
            not (self.resume and self.overwrite),
            "--resume and --overwrite: continue, or start over; drop one of them",
        )

        require(
            self.cuda_graph in (True, False, "auto"),
            f"--cuda_graph {self.cuda_graph}: no such choice; there are True, False and auto",
        )
        unlike = self.unlike_updates
        require(
            self.cuda_graph is not True or not unlike,
            f"--cuda_graph and {unlike}: no graph can hold that; drop one of them",
        )
        by_update = "sets the rate by updates, --minutes by the clock; drop one of them"
        as_in_2019 = self.minutes is not None and self.warmup_convention == "original"
        require(not as_in_2019, f"--warmup_convention original: {by_update}")

    @property
    def unlike_updates(self) -> str:
        """A flag by which updates differ in more than their numbers; empty: there is none."""
        others = {
            "--varlen": self.varlen,
            "--draw_mem_len": self.draw_mem_len > 0,
            "--recompute": self.recompute,
            "--swap_mem": self.swap_mem,
            "--shard": self.shard,
            "--on_nonfinite skip": self.on_nonfinite == "skip",
            "--dtype float16": self.dtype == "float16",
        }
        return next((flag for flag, is_on in others.items() if is_on), "")

    def record(self) -> dict[str, Any]:
        """All settings for config.json: those of the parts beside the others, of the package's
        parts also where they are not named.
        """
        values = as_dict(self)
        own = values.pop("own")
        for name, f in settings_of_package(self.parts).items():
            values[name] = default_of(f)
        return values | own

    @property
    def n_part(self) -> int:
        """Parts of a segment."""
        return self.memory_parts or 1

    @property
    def schedule_length(self) -> int:
        """Length of the learning rate schedule, in updates."""
        return self.max_step_scheduler or self.max_step
