"""Answers to people: the terminal chat."""
