"""Before and after: what two runs did differently (``runs``)."""
