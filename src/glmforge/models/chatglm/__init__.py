"""ChatGLM-6B: its own small model (2-D positions, prefix mask) and its tokenizer."""
