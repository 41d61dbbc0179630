"""A tiny base with two adapters on disk, and a model that says what it is told to."""

from types import SimpleNamespace

import torch

from glmforge.adapters import LoraSettings, add_lora
from glmforge.models import load_tokenizer
from glmforge.serve.opening import OpenModels
from small_models import ONE_LAYER, TINY_MODEL, write_small_model

POSITIONS = 96


def write_base(directory, positions=POSITIONS):
    """Save a random model of ChatGLM3's layout with the demo's vocabulary."""
    return write_small_model(directory, **ONE_LAYER, seq_length=positions)


def write_adapter(base, directory, seed):
    """Save an adapter with random weights large enough to change every answer."""
    from glmforge.export.base_print import write_base_print
    from glmforge.models import load_model

    settings = LoraSettings(
        r=4, lora_alpha=64, lora_dropout=0.0, target_modules=("query_key_value",)
    )
    wrapped = add_lora(load_model(base), settings)
    torch.manual_seed(seed)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)
    wrapped.save_pretrained(directory)
    write_base_print(base, directory)
    return directory


class Scripted(torch.nn.Module):
    """Answers with the given texts, one after another, each ended by a token."""

    def __init__(self, *answers):
        super().__init__()
        self.place = torch.nn.Parameter(torch.zeros(1))
        self.config = SimpleNamespace(family="chatglm3", max_position_embeddings=4096)
        self.generation_config = SimpleNamespace(eos_token_id=None)
        self.tokenizer = load_tokenizer(TINY_MODEL)
        self.answers = list(answers)
        self.prompts = []
        self.options = []

    def generate(self, input_ids, streamer, stopping_criteria, max_new_tokens, **options):
        self.prompts.append(input_ids[0].tolist())
        self.options.append(options)
        text, end = self.answers.pop(0)
        ids = self.tokenizer.encode_text(text)
        if end:
            ids = [*ids, self.tokenizer.convert_tokens_to_ids(end)]
        streamer.put(input_ids)
        for token in ids[:max_new_tokens]:
            input_ids = torch.cat([input_ids, torch.tensor([[token]])], dim=1)
            streamer.put(torch.tensor([token]))
            if bool(stopping_criteria(input_ids, None).all()):
                break
        streamer.end()
        return input_ids


def scripted(*answers):
    """Models of one base that says `answers`: (text, end token) each."""
    model = Scripted(*answers)
    return OpenModels(model, model.tokenizer, {})
