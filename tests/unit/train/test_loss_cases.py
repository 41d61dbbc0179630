"""Published faults of losses and their evaluation: L04, L06, and the ids of E01."""

import json

import pytest
import torch

from glmforge.data import build_examples, eval_batches, read_conversations, unpacked
from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import World
from glmforge.models import load_config, load_tokenizer, new_model
from glmforge.models.generation import answer
from glmforge.models.head import LanguageHead, mean_cross_entropy, next_token_targets
from glmforge.train.evaluate import evaluate
from small_models import TINY_MODEL


def case(shared, name):
    return json.loads((shared / "cases" / name).read_text(encoding="utf-8"))


def test_labels_are_shifted_once(shared):
    """Case L06: 0.428066 over 3 tokens, in the usual mean and in the trainer's chunked sum."""
    given = case(shared, "L06/logits.json")
    logits, labels = torch.tensor([given["logits"]]), torch.tensor([given["labels"]])
    assert mean_cross_entropy(logits, labels).item() == pytest.approx(0.428066, abs=1e-6)
    targets = next_token_targets(labels)
    chosen = targets != -100
    head = LanguageHead(given["vocab"], given["vocab"])
    with torch.no_grad():
        head.weight.copy_(torch.eye(given["vocab"]))
    total = head(logits[0][chosen], targets[chosen], divisor=3)
    assert int(chosen.sum()) == 3
    assert total.item() == pytest.approx(0.428066, abs=1e-6)


def test_evaluation_looks_at_the_last_turn_where_training_does(shared):
    """Case L04: one span, its stop token included; the loss of the record is that span's."""
    tokenizer = load_tokenizer(TINY_MODEL)
    conversations = read_conversations(shared / "cases/L04/train.jsonl")
    (example,) = build_examples(
        conversations, tokenizer, max_length=512, labels="last_turn"
    ).examples
    trained = example.labels != -100
    assert int((trained[1:] & ~trained[:-1]).sum()) == 1
    span = example.input_ids[trained].tolist()
    assert tokenizer.decode(span[:-1]).strip() == "不客气"
    assert span[-1] == tokenizer.convert_tokens_to_ids("</s>")
    torch.manual_seed(0)
    model = new_model(load_config(TINY_MODEL)).eval()
    batches = eval_batches([example], unpacked(1), rank=0, world_size=1, micro_batch=1)
    found = evaluate(model, batches, Ranks(world=World(), device=torch.device("cpu")))
    ids = torch.from_numpy(example.input_ids.astype("int64"))[None]
    chances = model(ids).logits[0, :-1].log_softmax(-1)
    nll = -chances[torch.arange(ids.shape[1] - 1), ids[0, 1:]].detach()
    expected = float(nll[torch.from_numpy(trained[1:])].mean())
    assert found.tokens == len(span)
    assert found.loss == pytest.approx(expected, rel=1e-6)


def test_answers_are_decoded_without_padding_or_ignored_ids(shared):
    """Case E01: what is scored is the ids before the stop, so no -100 reaches a decoder."""
    given = case(shared, "E01/ids.json")
    tokenizer = load_tokenizer(TINY_MODEL)
    (stop,) = tokenizer.convert_tokens_to_ids(["<|user|>"])

    class Fixed(torch.nn.Module):
        generation_config = type("Config", (), {"eos_token_id": None})()
        config = new_model(load_config(TINY_MODEL)).config

        def __init__(self, row):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.row = row

        def generate(self, input_ids, **_):
            return torch.cat([input_ids, torch.tensor([self.row])], dim=1)

    lengths = []
    for row in given["pred_ids"]:
        kept = [index for index in row if index not in (-100, given["pad_id"])]
        padded = [*kept, stop] + [given["pad_id"]] * (5 - len(kept))
        found = answer(Fixed(padded), tokenizer, [5, 6], max_new_tokens=6)
        assert found.token_ids == tuple(kept)
        lengths.append(len(found.token_ids))
    assert lengths == [3, 1]
