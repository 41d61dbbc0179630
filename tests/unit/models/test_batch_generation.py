"""A batch answers every prompt as it would be answered alone, whatever the model's files say."""

import pytest
import torch
from vocabularies import write_bpe, write_ranks, write_unigram

from glmforge.data import generation_prompt
from glmforge.models import load_tokenizer
from glmforge.models.batch_generation import Sampling, answer_batch
from glmforge.models.generation import answer, stop_ids

FAMILIES = [("chatglm3", write_bpe), ("glm4-9b", write_ranks), ("chatglm", write_unigram)]
QUESTIONS = ("a", "how many parcels are there today", "one two three")


@pytest.fixture
def opened(tiny_model, tmp_path):
    """A tiny model and a tokenizer of its family whose control ids it knows."""

    def build(generation, write):
        tokenizer = load_tokenizer(write(tmp_path))
        names = {"bos": "<sop>", "eos": "<eop>", "mask": "[MASK]", "gmask": "[gMASK]"}
        ids = {
            f"{key}_token_id": tokenizer.convert_tokens_to_ids(name) for key, name in names.items()
        }
        return tiny_model(generation, **(ids if generation == "chatglm" else {})), tokenizer

    return build


def prompts_of(tokenizer):
    return [generation_prompt([{"role": "user", "content": text}], tokenizer) for text in QUESTIONS]


@pytest.mark.parametrize(("generation", "write"), FAMILIES)
def test_a_batch_equals_its_prompts_alone(opened, generation, write):
    model, tokenizer = opened(generation, write)
    prompts = prompts_of(tokenizer)
    assert len({len(prompt) for prompt in prompts}) > 1, "padding must occur"
    stops = stop_ids(model, tokenizer)
    alone = [answer(model, tokenizer, prompt, max_new_tokens=12) for prompt in prompts]
    together = answer_batch(
        model, tokenizer, prompts, stops=stops, max_new_tokens=12, sampling=Sampling()
    )
    assert together == alone


@pytest.mark.parametrize(("generation", "write"), FAMILIES)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_the_penalty_does_not_see_padding(opened, generation, write, num_beams):
    """The pad id of GLM-4 is also a stop id: counted as said, it would be harder to reach.

    A prompt alone, without padding, gets what transformers' own penalty gives it.
    """
    model, tokenizer = opened(generation, write)
    choice = {"num_beams": num_beams, "repetition_penalty": 3.0}
    prompts = prompts_of(tokenizer)
    alone = [answer(model, tokenizer, prompt, max_new_tokens=12, **choice) for prompt in prompts]
    together = answer_batch(
        model,
        tokenizer,
        prompts,
        stops=stop_ids(model, tokenizer),
        max_new_tokens=12,
        sampling=Sampling(**choice),
    )
    assert together == alone


def test_the_models_own_generation_config_changes_nothing(opened):
    model, tokenizer = opened("chatglm3", write_bpe)
    prompts = prompts_of(tokenizer)
    greedy = {"stops": [2], "max_new_tokens": 8, "sampling": Sampling()}
    drawn = {**greedy, "sampling": Sampling(seed=3, temperature=0.7, repetition_penalty=1.2)}
    before = [answer_batch(model, tokenizer, prompts, **options) for options in (greedy, drawn)]
    config = model.generation_config
    config.do_sample, config.temperature, config.top_p, config.top_k = True, 0.3, 0.5, 3
    config.repetition_penalty, config.num_beams, config.eos_token_id = 5.0, 2, [7]
    config.no_repeat_ngram_size, config.min_new_tokens, config.length_penalty = 2, 8, 0.3
    after = [answer_batch(model, tokenizer, prompts, **options) for options in (greedy, drawn)]
    assert after == before


def test_a_seed_gives_the_same_answers_and_another_seed_others(opened):
    model, tokenizer = opened("chatglm3", write_bpe)
    prompts = prompts_of(tokenizer)

    def draw(seed):
        torch.rand(3)
        return answer_batch(
            model, tokenizer, prompts, stops=[2], max_new_tokens=8, sampling=Sampling(seed=seed)
        )

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_an_answer_ends_at_the_first_stop_or_is_cut(opened):
    model, tokenizer = opened("chatglm3", write_bpe)
    (prompt, *_) = prompts_of(tokenizer)
    options = {"max_new_tokens": 6, "sampling": Sampling()}
    (cut,) = answer_batch(model, tokenizer, [prompt], stops=[511], **options)
    assert (cut.stop_reason, len(cut.token_ids)) == ("length", 6)
    third = cut.token_ids[2]
    (ended,) = answer_batch(model, tokenizer, [prompt], stops=[third], **options)
    assert ended.stop_reason == "stop"
    assert ended.token_ids == cut.token_ids[: cut.token_ids.index(third)]


@pytest.mark.parametrize(("generation", "write"), FAMILIES)
def test_ids_of_the_padded_rows_of_a_vocabulary_decode_to_nothing(opened, generation, write):
    """Weights have more rows than the tokenizer has tokens; an untrained model picks such ids."""
    _, tokenizer = opened(generation, write)
    known = tokenizer.encode_text("parcel")
    assert tokenizer.decode([*known, 100_000]) == tokenizer.decode(known)
