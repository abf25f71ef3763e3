"""The test-time methods that the flags ask for."""

from typing import NamedTuple

from txl.config import Context, require
from txl.evaluation.config import CacheConfig, DynamicConfig, KnnConfig


class Additions(NamedTuple):
    """Settings of all test-time methods; each is off by default."""

    dynamic: DynamicConfig = DynamicConfig()
    cache: CacheConfig = CacheConfig()
    knn: KnnConfig = KnnConfig()

    @property
    def name(self) -> str:
        """The active methods in words; empty if there are none."""
        return " + ".join(
            f"dynamic {self.dynamic.dynamic}" if name == "dynamic" else name
            for name in self._active
        )

    @property
    def _active(self) -> list[str]:
        """The active methods."""
        active = {
            "dynamic": self.dynamic.dynamic != "off",
            "cache": self.cache.cache_size > 0,
            "knn": self.knn.knn_store is not None,
        }
        return [name for name, is_active in active.items() if is_active]

    def check(self, dtype: str, world: int, convention: str = "txl") -> None:
        """Raise `UsageError` on combinations that do not work; `world`: number of processes."""
        require(
            not self.name or convention == "txl",
            f"--convention {convention}: reproduces figures of plain models; drop it, or the"
            f" test-time method: {self.name}",
        )
        if self.dynamic.dynamic == "off":
            return
        require(
            dtype == "float32",
            f"--dtype {dtype} and --dynamic {self.dynamic.dynamic}: autocast caches the weights,"
            " which would not adapt; drop one of the two",
        )
        require(
            world == 1,
            f"--dynamic {self.dynamic.dynamic}: adapts one set of weights to one text; run one"
            f" process, not {world}",
        )

    @property
    def read_training_text(self) -> bool:
        """True if a method needs the training text."""
        return self.dynamic.dynamic == "rms" or self.knn.knn_store is not None

    def warmup_segments(self, context: Context) -> int:
        """Warm-up segments needed in addition to those of the model."""
        return -(-self.cache.cache_size // context.tgt_len)
