"""Pipelines of transformers that take more than the model: text generation, and features of several
texts at once.
"""

from typing import Any

from transformers.pipelines import PIPELINE_REGISTRY  # pyright: ignore[reportMissingImports]
from transformers.pipelines.feature_extraction import (  # pyright: ignore[reportMissingImports]
    FeatureExtractionPipeline,
)
from transformers.pipelines.text_generation import (  # pyright: ignore[reportMissingImports]
    ReturnType,
    TextGenerationPipeline,
)

from txl.hf.config import TransfoXLConfig


class WordGenerationPipeline(TextGenerationPipeline):
    """The pipeline of transformers; with a TransfoXL, texts are joined as words are.

    Other tokenizers hold the space between a prompt and what continues it in their tokens, and the
    pipeline relies on it: it decodes the new tokens alone.
    """

    def postprocess(
        self, model_outputs: Any, return_type: Any = ReturnType.FULL_TEXT, **settings: Any
    ) -> Any:
        records = super().postprocess(model_outputs, return_type, **settings)
        prompt = model_outputs["prompt_text"]
        has_text = return_type != ReturnType.TENSORS and isinstance(prompt, str) and bool(prompt)
        if not isinstance(self.model.config, TransfoXLConfig) or not has_text:
            return records
        skip = settings.get("skip_special_tokens")
        how = {"skip_special_tokens": True if skip is None else skip}
        before = self.tokenizer.decode(model_outputs["input_ids"][0], **how)
        for record, ids in zip(
            records, model_outputs["generated_sequence"][0].tolist(), strict=True
        ):
            text = self.tokenizer.decode(ids, **how)
            if text.startswith(before):
                new = text[len(before) :]
                record["generated_text"] = (
                    prompt + new if return_type == ReturnType.FULL_TEXT else new
                )
        return records


class WordFeaturePipeline(FeatureExtractionPipeline):
    """The pipeline of transformers; a TransfoXL returns no memory, which would be cut into rows by
    its first dimension, and no states of padding, so that a text among others has the features that
    it has alone.
    """

    def _forward(self, model_inputs: Any) -> Any:
        if not isinstance(self.model.config, TransfoXLConfig):
            return super()._forward(model_inputs)
        features = self.model(**model_inputs, use_cache=False)[0]
        return {"features": features, "attention_mask": model_inputs["attention_mask"]}

    def postprocess(self, model_outputs: Any, return_tensors: bool = False) -> Any:
        if "features" not in model_outputs:
            return super().postprocess(model_outputs, return_tensors)
        is_token_T = model_outputs["attention_mask"][0] != 0
        features_BTD = model_outputs["features"][:, is_token_T]
        if return_tensors:
            return features_BTD
        return features_BTD.tolist()


PIPELINES = {"text-generation": WordGenerationPipeline, "feature-extraction": WordFeaturePipeline}


def register() -> None:
    """Make these the pipelines of their tasks; other models have what they had."""
    tasks = PIPELINE_REGISTRY.supported_tasks
    for task, pipeline in PIPELINES.items():
        tasks[task] = {**tasks[task], "impl": pipeline}
