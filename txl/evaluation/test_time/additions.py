"""The test-time methods that the flags ask for."""

from typing import NamedTuple

from txl.config import Context, require
from txl.evaluation.test_time.cache import CacheConfig
from txl.evaluation.test_time.dynamic import DynamicConfig
from txl.evaluation.test_time.knn import KnnConfig


class Additions(NamedTuple):
    """Settings of all test-time methods, each a `MethodSettings`; each is off by default."""

    dynamic: DynamicConfig = DynamicConfig()
    cache: CacheConfig = CacheConfig()
    knn: KnnConfig = KnnConfig()

    @property
    def name(self) -> str:
        """The active methods in words; empty if there are none."""
        return " + ".join(method.name for method in self if method.is_on)

    def check(self, dtype: str, world: int, convention: str = "txl") -> None:
        """Raise `UsageError` on combinations that do not work; `world`: number of processes."""
        require(
            not self.name or convention == "txl",
            f"--convention {convention}: reproduces figures of plain models; drop it, or the"
            f" test-time method: {self.name}",
        )
        for method in self:
            method.check(dtype, world)

    @property
    def read_training_text(self) -> bool:
        """True if a method needs the training text."""
        return any(method.reads_training_text for method in self)

    def warmup_segments(self, context: Context) -> int:
        """Warm-up segments needed in addition to those of the model."""
        return -(-max(method.n_warmup for method in self) // context.tgt_len)
