"""Registers the ChatGLM classes with transformers' Auto classes, by their public ``register``.

Owns nothing else. After `register_models`, ``AutoConfig``, ``AutoModel``,
``AutoModelForCausalLM`` and ``AutoModelForSeq2SeqLM`` open a ChatGLM directory with our code and
never run the directory's own: transformers prefers registered classes over ``auto_map`` whatever
``trust_remote_code`` says, and a configuration of ours shows no ``auto_map`` to the Auto classes
that there is nothing to register with. All three model classes give the model with its head, as
the hub's ``auto_map`` does.
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from glmforge.models.chatglm.configuration import ChatGLM6BConfig
from glmforge.models.chatglm.modeling import ChatGLM6BForConditionalGeneration
from glmforge.models.configuration import ChatGLMConfig
from glmforge.models.glm.configuration import ChatGLM2Config
from glmforge.models.glm.modeling import ChatGLMForConditionalGeneration
from glmforge.models.tokenizers import register_tokenizers


def register_models() -> None:
    """Make transformers' Auto classes know the ChatGLM line; repeating it changes nothing."""
    AutoConfig.register("chatglm", ChatGLMConfig, exist_ok=True)
    for auto_class in (AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM):
        auto_class.register(ChatGLM6BConfig, ChatGLM6BForConditionalGeneration, exist_ok=True)
        auto_class.register(ChatGLM2Config, ChatGLMForConditionalGeneration, exist_ok=True)
    register_tokenizers()
