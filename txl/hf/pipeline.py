"""`pipeline("text-generation")` of transformers with words: the space between a prompt and what continues it.

Other tokenizers hold that space in their tokens, and the pipeline relies on it: it decodes the new tokens alone.
"""

from typing import Any

from transformers.pipelines import PIPELINE_REGISTRY  # pyright: ignore[reportMissingImports]
from transformers.pipelines.text_generation import (  # pyright: ignore[reportMissingImports]
    ReturnType,
    TextGenerationPipeline,
)

from txl.hf.config import TransfoXLConfig

TASK = "text-generation"


class WordGenerationPipeline(TextGenerationPipeline):
    """The pipeline of transformers; with a TransfoXL, texts are joined as words are."""

    def postprocess(self, model_outputs: Any, return_type: Any = ReturnType.FULL_TEXT, **settings: Any) -> Any:
        records = super().postprocess(model_outputs, return_type, **settings)
        prompt = model_outputs["prompt_text"]
        has_text = return_type != ReturnType.TENSORS and isinstance(prompt, str) and bool(prompt)
        if not isinstance(self.model.config, TransfoXLConfig) or not has_text:
            return records
        skip = settings.get("skip_special_tokens")
        how = {"skip_special_tokens": True if skip is None else skip}
        before = self.tokenizer.decode(model_outputs["input_ids"][0], **how)
        for record, ids in zip(records, model_outputs["generated_sequence"][0].tolist(), strict=True):
            text = self.tokenizer.decode(ids, **how)
            if text.startswith(before):
                new = text[len(before) :]
                record["generated_text"] = prompt + new if return_type == ReturnType.FULL_TEXT else new
        return records


def register() -> None:
    """Make it the pipeline of the task; models with other tokenizers have what they had."""
    tasks = PIPELINE_REGISTRY.supported_tasks
    tasks[TASK] = {**tasks[TASK], "impl": WordGenerationPipeline}
