"""A kind of checkpoint whose model is made on the spot, with the tokenizer of its folder."""

import torch

from txl.config import Context, ModelConfig
from txl.convert.source import Found, Place, Source
from txl.model.transformer import TransformerXL

N_TOKEN = 400


class Toy(Source):
    """A folder with a file `toy`."""

    name = "toy"
    kind = "a toy"

    @classmethod
    def recognises(cls, place: Place) -> bool:
        return (place.path / "toy").is_file()

    @classmethod
    def read(cls, place: Place) -> Found:
        torch.manual_seed(4)
        sizes = {"n_layer": 1, "n_head": 2, "d_head": 8, "d_model": 16, "d_inner": 16}
        model = TransformerXL(ModelConfig(n_token=N_TOKEN, **sizes))
        for parameter in model.parameters():
            parameter.data *= 10
        context = Context(tgt_len=16, mem_len=16)
        return Found(model, context, ("all",), place.path / "toy", [], has_tokenizer=True)
