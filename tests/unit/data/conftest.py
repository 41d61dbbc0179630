"""A spelled-out stub of each family's tokenizer (`real_tokenizer` opens the real ones)."""

import pytest


class StubTokenizer:
    """One id a character; control tokens have ids of their own and are never read from text."""

    CONTROLS = (
        "[gMASK]", "sop", "<sop>", "<eop>", "</s>", "<|endoftext|>",
        "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
    )  # fmt: skip
    FIRST_CHARACTER = 100

    def __init__(self, family):
        self.family = family
        self.eos_token_id = self.convert_tokens_to_ids("</s>")

    def encode_text(self, text):
        return [self.FIRST_CHARACTER + ord(character) for character in text]

    def convert_tokens_to_ids(self, token):
        return 1 + self.CONTROLS.index(token)

    def decode(self, ids):
        return "".join(
            chr(i - self.FIRST_CHARACTER)
            if i >= self.FIRST_CHARACTER
            else f"⟦{self.CONTROLS[i - 1]}⟧"
            for i in ids
        )


@pytest.fixture(scope="session")
def stub():
    return {name: StubTokenizer(name) for name in ("chatglm", "chatglm2", "chatglm3", "glm4")}
