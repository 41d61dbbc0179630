"""Before and after: models on the same prompts (``run``), two runs step by step (``runs``)."""
