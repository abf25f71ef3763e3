"""The test-time methods that the flags ask for."""

from collections.abc import Collection
from typing import NamedTuple

from txl.config import Context, require
from txl.evaluation.config import CacheConfig, DynamicConfig, EvalConfig, KnnConfig

_SWITCHES = {"dynamic": "--dynamic sgd or --dynamic rms", "cache": "--cache_size", "knn": "--knn_store"}


class Additions(NamedTuple):
    """Settings of all test-time methods; each is off by default."""

    dynamic: DynamicConfig = DynamicConfig()
    cache: CacheConfig = CacheConfig()
    knn: KnnConfig = KnnConfig()

    @property
    def name(self) -> str:
        """The active methods in words; empty if there are none."""
        return " + ".join(f"dynamic {self.dynamic.dynamic}" if name == "dynamic" else name for name in self._active)

    @property
    def _active(self) -> list[str]:
        """The active methods, by the beginning of their flags."""
        active = {
            "dynamic": self.dynamic.dynamic != "off",
            "cache": self.cache.cache_size > 0,
            "knn": self.knn.knn_store is not None,
        }
        return [name for name, is_active in active.items() if is_active]

    def check(self, typed: Collection[str], config: EvalConfig, world: int) -> None:
        """Raise `UsageError` on flags without effect and on combinations that do not work.

        Args:
            typed: the flags on the command line.
            world: number of processes.
        """
        for name in sorted(set(typed) - {"dynamic", "cache_size", "cache_dir"}):
            method = name.partition("_")[0]
            require(
                method not in _SWITCHES or method in self._active,
                f"--{name} has no effect without {_SWITCHES.get(method)}; give it, or leave this flag out",
            )
        self.dynamic.require_effect(typed)
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
