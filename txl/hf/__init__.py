"""TransfoXL in transformers 5, which removed it: after `import txl.hf`, AutoModelForCausalLM,
AutoTokenizer and others load folders of model_type transfo-xl. An extra: pip install -e ".[hf]" in
a clone of the project.
"""

try:
    import transformers  # pyright: ignore[reportMissingImports] (an extra)
except ImportError:
    raise ImportError(
        'txl.hf needs transformers 5.4 or newer: pip install -e ".[hf]" in a clone of the project'
    ) from None
# older 5 unties weights that a .bin holds twice
if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 4):
    raise ImportError(
        f"txl.hf needs transformers 5.4 or newer, this is {transformers.__version__}; upgrade it"
    )

from txl.hf.config import TransfoXLConfig
from txl.hf.heads import TransfoXLForSequenceClassification, TransfoXLLMHeadModel
from txl.hf.model import TransfoXLModel
from txl.hf.pipeline import register as register_pipeline
from txl.hf.tokenizer import TransfoXLTokenizer

__all__ = [
    "TransfoXLConfig",
    "TransfoXLForSequenceClassification",
    "TransfoXLLMHeadModel",
    "TransfoXLModel",
    "TransfoXLTokenizer",
]

transformers.AutoConfig.register("transfo-xl", TransfoXLConfig)
transformers.AutoModel.register(TransfoXLConfig, TransfoXLModel)
transformers.AutoModelForCausalLM.register(TransfoXLConfig, TransfoXLLMHeadModel)
transformers.AutoModelForSequenceClassification.register(
    TransfoXLConfig, TransfoXLForSequenceClassification
)
transformers.AutoTokenizer.register(TransfoXLConfig, TransfoXLTokenizer)
register_pipeline()
