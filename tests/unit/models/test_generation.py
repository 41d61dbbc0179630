"""Where an answer ends: at every stop token of the family, whatever the directory's files say."""

import pytest
from vocabularies import write_bpe, write_ranks, write_unigram

from glmforge.models import load_tokenizer
from glmforge.models.generation import stop_ids
from glmforge.models.stock_tokenizer import stock_tokenizer


@pytest.mark.parametrize(
    ("generation", "write", "names"),
    [
        ("chatglm3", write_bpe, ["</s>", "<|user|>", "<|observation|>"]),
        ("glm4-9b", write_ranks, ["<|endoftext|>", "<|user|>", "<|observation|>"]),
        ("chatglm", write_unigram, ["<eop>"]),
    ],
)
def test_the_familys_stop_tokens_end_an_answer(tiny_model, tmp_path, generation, write, names):
    """ChatGLM3's config.json names </s> alone; the model ends a turn with the next role token."""
    model = tiny_model(generation)
    tokenizer = load_tokenizer(write(tmp_path))
    found = stop_ids(model, tokenizer)
    assert found[: len(names)] == [tokenizer.convert_tokens_to_ids(name) for name in names]


def test_a_stop_token_that_a_tokenizer_lacks_is_passed_over(tiny_model, tmp_path):
    """Transformers gives the unknown token's id for it, which would end every answer there."""
    stock = stock_tokenizer(load_tokenizer(write_bpe(tmp_path)))
    found = stop_ids(tiny_model("glm"), stock)
    assert stock.convert_tokens_to_ids("<|user|>") in found
    assert stock.unk_token_id not in found
