"""Runs whose evaluations are looked at."""
