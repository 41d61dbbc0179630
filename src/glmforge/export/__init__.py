"""Weights out: an adapter or a whole model, each reopened and compared before it counts as done."""

from glmforge.export.merge import ExportReport, export

__all__ = ["ExportReport", "export"]
