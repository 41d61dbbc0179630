"""ChatGLM-6B: configuration, model (2-D rotary positions, prefix-LM mask) and tokenizer.

Owns what only the first generation has. It does not read directories (models/loading.py) and
knows no prompt format (data/templates.py).
"""
