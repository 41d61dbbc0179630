"""ChatGLM2-6B, ChatGLM3-6B and GLM-4-9B: one decoder, and their tokenizers.

Owns the configuration and the model of the three generations that share a decoder. It does not
read directories (models/loading.py) and knows no prompt format (data/templates.py).
"""
