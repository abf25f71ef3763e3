"""What is asked of a test-time method before it is built."""

from txl.config import Checked


class MethodSettings(Checked):
    """The settings of a test-time method, flags of the programs that evaluate; without any it is
    off.
    """

    @property
    def name(self) -> str:
        """The method in words; empty: it is off."""
        raise NotImplementedError

    @property
    def is_on(self) -> bool:
        """True if the method is asked for."""
        return self.name != ""

    @property
    def reads_training_text(self) -> bool:
        """True if it is prepared from the training text."""
        return False

    @property
    def n_warmup(self) -> int:
        """Tokens that it has to see before the first that counts."""
        return 0

    def check(self, dtype: str, world: int) -> None:
        """Raise `UsageError` if it does not work in this dtype or in so many processes."""
