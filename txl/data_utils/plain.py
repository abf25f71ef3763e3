"""The data sets whose files hold the text as it is: words, characters and bytes."""

from .config import DataSet
from .texts import SPLITS, AnyFiles, AnyText, Texts
from .tokens import ALL_BYTES, EOS, UNK, Characters, LowerVocab, Symbols, Vocab

TEXT = DataSet(AnyText, Vocab, ("train",), special=(EOS, UNK), is_tokenised=False)
WT103 = DataSet(Texts, Vocab, ("train",), special=(EOS,))
WT2 = DataSet(Texts, Vocab, SPLITS, special=(EOS,))
PTB = DataSet(Texts, LowerVocab, SPLITS, special=(EOS,))
CHARACTERS = DataSet(AnyText, Characters, ("train",))
ANY_BYTES = DataSet(AnyFiles, Symbols, known=lambda texts: Symbols(ALL_BYTES))
