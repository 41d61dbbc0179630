"""A quality report in words: what ``glmforge data check`` prints, and its JSON twin.

The numbers come from ``quality``, the judgement from ``verdict``; here they only get their
sentences. Text from the data is made safe to print.
"""

import dataclasses
from typing import Any

from glmforge.data.conversation import shown
from glmforge.data.quality import KEPT_PROBLEMS, Report
from glmforge.data.unread import unread_line
from glmforge.data.verdict import blocks, findings

_BAR = 40  # characters of the longest bar
_FIRST = 3


def report_lines(report: Report, *, problems: int = 20) -> list[str]:
    """The report for people: figures, problems, verdict.

    Args:
        report: what ``examine`` found.
        problems: how many problems of single records are written out.
    """
    lines = [
        f"{report.records:,} records, {report.turns:.1f} answers each (mean), "
        f"median answer {report.median_answer:,} characters"
    ]
    if report.unread:
        lines.append(unread_line(report.unread))
    tokens = report.tokens
    if tokens is not None:
        lines.append(str(tokens.counts).replace("\n", "; "))
    if tokens is not None and tokens.counts.rows:
        lines += [
            f"tokens a row: mean {tokens.mean:,.0f}, median {tokens.median:,}, "
            f"95 % below {tokens.p95:,}, longest {tokens.longest:,}",
        ]
        most = max((count for _, count in tokens.bins), default=1)
        lines += [
            f"  < {edge:>7,} {'█' * max(1, round(_BAR * count / most))} {count:,}"
            for edge, count in tokens.bins
        ]
    chosen = f" (of {report.topic_texts:,} questions)"
    for name, found, total in (
        ("question openings", report.patterns, report.records),
        ("topics" + chosen * (report.topic_texts < report.records)
         + ", by length in characters and common words", report.topics, report.topic_texts),
    ):  # fmt: skip
        said = "; ".join(
            f"{c.name} ({c.count:,}, {c.count / total:.0%})" for c in found[:_FIRST] if c.count > 1
        )
        if said:
            lines.append(f"most frequent {name}: {shown(said)}")
    lines += [f"  {shown(text)}" for text in report.copy_examples]
    if report.problems:
        lines.append("")
        lines += [f"{p.level}: {shown(str(p))}" for p in report.problems[:problems]]
        rest = len(report.problems) + report.more_problems - problems
        if rest > 0:
            lines.append(f"and {rest:,} more; --json lists the first {KEPT_PROBLEMS:,}")
    return [*lines, "", *_verdict_lines(report)]


def _verdict_lines(report: Report) -> list[str]:
    found = findings(report)
    worth = [finding for finding in found if finding.severity != "note"]
    if not worth:
        notes = [f"note: {shown(str(finding))}" for finding in found[:_FIRST]]
        return [*notes, "verdict: nothing speaks against training on this set"]
    opening = (
        "do not train on this set yet" if blocks(report) else "usable; better with a few fixes"
    )
    lines = [f"verdict: {opening}. First:"]
    lines += [f"{n}. {shown(str(finding))}" for n, finding in enumerate(found[:_FIRST], 1)]
    return lines


def report_values(report: Report) -> dict[str, Any]:
    """The report as plain values for JSON, with the findings and the verdict."""
    values = dataclasses.asdict(report)
    values["findings"] = [dataclasses.asdict(finding) for finding in findings(report)]
    values["blocks"] = blocks(report)
    return values
