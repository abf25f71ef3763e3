"""The test-time methods that the flags ask for."""

from collections.abc import Collection
from typing import NamedTuple

from txl.config import Context, UsageError, require
from txl.evaluation.config import CacheConfig, DynamicConfig, EvalConfig, KnnConfig


class Additions(NamedTuple):
    """Settings of all test-time methods; each is off by default."""

    dynamic: DynamicConfig = DynamicConfig()
    cache: CacheConfig = CacheConfig()
    knn: KnnConfig = KnnConfig()

    @property
    def name(self) -> str:
        """The active methods in words; empty if there are none."""
        parts = {
            f"dynamic {self.dynamic.dynamic}": self.dynamic.dynamic != "off",
            "cache": self.cache.cache_size > 0,
            "knn": self.knn.knn_store is not None,
        }
        return " + ".join(part for part, is_on in parts.items() if is_on)

    def check(self, typed: Collection[str], config: EvalConfig, world: int) -> None:
        """Raise `UsageError` on flags without effect and on combinations that do not work.

        Args:
            typed: the flags on the command line.
            world: number of processes.
        """
        switches = {
            "dynamic": ("--dynamic sgd or --dynamic rms", self.dynamic.dynamic != "off"),
            "cache": ("--cache_size", self.cache.cache_size > 0),
            "knn": ("--knn_store", self.knn.knn_store is not None),
        }
        for name in typed:
            switch, is_on = switches.get(name.partition("_")[0], ("", True))
            if not is_on and name not in ("dynamic", "cache_size", "cache_dir"):
                raise UsageError(f"--{name} has no effect without {switch}; give it, or leave this flag out")
        for name in ("dynamic_epsilon", "dynamic_segments"):
            require(
                self.dynamic.dynamic != "sgd" or name not in typed,
                f"--{name} has no effect with --dynamic sgd, --dynamic rms reads it; leave it out",
            )
        require(
            not self.name or config.convention == "txl",
            f"--convention {config.convention}: reproduces figures of plain models; drop it, or the test-time method: "
            f"{self.name}",
        )
        if self.dynamic.dynamic == "off":
            return
        require(
            config.dtype == "float32",
            f"--dtype {config.dtype} and --dynamic {self.dynamic.dynamic}: autocast caches the weights, which would "
            f"not adapt; drop one of the two",
        )
        require(
            world == 1,
            f"--dynamic {self.dynamic.dynamic}: adapts one set of weights to one text; run one process, not {world}",
        )

    @property
    def read_training_text(self) -> bool:
        """True if a method needs the training text."""
        return self.dynamic.dynamic == "rms" or self.knn.knn_store is not None

    def warmup_segments(self, context: Context) -> int:
        """Warm-up segments needed in addition to those of the model."""
        return -(-self.cache.cache_size // context.tgt_len)
