"""A quality report to findings: what makes training a mistake, what to fix, what to know.

The limits are judgements, written down here and nowhere else; each finding says the number it
judges, so that a user can disagree.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from glmforge.data.quality import Report, Severity

_RANK: dict[Severity, int] = {"blocks": 0, "fix": 1, "note": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing about the set: ``blocks`` training, should be ``fix``-ed, or worth a ``note``."""

    severity: Severity
    share: float
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}"


def findings(report: Report) -> list[Finding]:
    """All findings, the worst first (by severity, then by the share of records)."""
    found = [*_record_findings(report), *_set_findings(report), *_token_findings(report)]
    return sorted(found, key=lambda finding: (_RANK[finding.severity], -finding.share))


def blocks(report: Report) -> bool:
    """Whether training on this set would be a mistake."""
    return any(finding.severity == "blocks" for finding in findings(report))


def _record_findings(report: Report) -> Iterator[Finding]:
    total = max(report.records, 1)
    if not report.records and not report.rules:
        yield Finding(severity="blocks", share=1.0, text="there is no record",
                      advice="give files with dialogues")  # fmt: skip
    for rule, count in report.rules.items():
        if rule == "too-long" and report.levels[rule] == "warning":
            continue  # told with the token figures
        of_files = rule in report.file_rules
        share = 1.0 if of_files else count / total
        shown = report.examples[rule][0]
        if report.levels[rule] == "error":
            severity: Severity = "blocks"
        elif rule in ("placeholder", "replacement-character") and share >= 0.05:
            severity = "blocks"
        else:
            severity = "fix" if share >= 0.01 else "note"
        place, _, advice = shown.rpartition("; ")
        said = f"{count:,}" if of_files else f"{count:,} ({share:.1%} of the records)"
        text = f"{rule}: {said}, first {place}"
        yield Finding(severity=severity, share=share, text=text, advice=advice)


def _of_copies(count: int, share: float) -> Severity:
    if share >= 0.2 and count >= 10:
        return "blocks"
    return "fix" if share >= 0.01 else "note"


def _set_findings(report: Report) -> Iterator[Finding]:
    total = max(report.records, 1)
    if report.exact_copies:
        share = report.exact_copies / total
        yield Finding(
            severity=_of_copies(report.exact_copies, share),
            share=share,
            text=f"exact copies: {report.exact_copies:,} records ({share:.1%}) repeat another",
            advice="keep one of each",
        )
    if report.near_copies:
        share = report.near_copies / total
        yield Finding(
            severity="fix" if share >= 0.05 else "note",
            share=share,
            text=f"near copies: {report.near_copies:,} records ({share:.1%}) nearly repeat another",
            advice="keep the best of each group",
        )
    if report.overlap:
        share = report.overlap / max(report.validation_records, 1)
        first = ", ".join(report.overlap_examples)
        yield Finding(
            severity="blocks" if share >= 0.01 else "fix",
            share=share,
            text=f"{report.overlap:,} of {report.validation_records:,} validation records "
            f"({share:.1%}) are also trained on (first: {first})",
            advice="take them out of the training set, or the validation loss means nothing",
        )
    if report.answers and report.answers[0].count >= 5:
        top = report.answers[0]
        share = top.count / max(report.turns * total, 1)
        if share >= 0.1:
            yield Finding(
                severity="blocks" if share >= 0.5 else "fix",
                share=share,
                text=f"one answer pattern makes {share:.0%} of all answers: {top.example!r}",
                advice="vary the answers, or the model will repeat this one",
            )
    top_pattern = report.patterns[0] if report.patterns else None
    if top_pattern and top_pattern.count >= 5 and top_pattern.count / total >= 0.3:
        top = top_pattern
        share = top.count / total
        yield Finding(
            severity="fix",
            share=share,
            text=f"{share:.0%} of the questions open alike ({top.name!r}): {top.example!r}",
            advice="vary the questions, or the model will expect this opening",
        )
    if report.long_answers:
        source, length = report.long_answers[0]
        yield Finding(
            severity="note",
            share=len(report.long_answers) / total,
            text=f"the longest answers are far from the median of {report.median_answer:,} "
            f"characters: {source} has {length:,}",
            advice="look at them",
        )


def _token_findings(report: Report) -> Iterator[Finding]:
    tokens = report.tokens
    if tokens is None:
        return
    total = max(report.records, 1)
    if report.records and not tokens.counts.rows:
        causes = [
            rule for rule in report.rules if rule == "too-long" or report.levels[rule] == "error"
        ]
        cause = f": the rule that most records break is {causes[0]}" if causes else ""
        long = "too-long" in causes[:1]
        yield Finding(severity="blocks", share=1.0, text=f"no trainable row is left{cause}",
                      advice="raise max_length" if long else "fix the records")  # fmt: skip
    if tokens.overlong:
        share = tokens.overlong / total
        done = str(tokens.counts).rpartition("\n")[2]
        yield Finding(
            severity="blocks" if tokens.counts.dropped / total >= 0.2 else "fix",
            share=share,
            text=f"{tokens.overlong:,} records ({share:.1%}) are longer than max_length ({done})",
            advice="raise max_length, split them, or choose the truncation on purpose",
        )
    if tokens.unknown_tokens:
        yield Finding(
            severity="fix",
            share=tokens.unknown_tokens / max(tokens.counts.total_tokens, 1),
            text=f"{tokens.unknown_tokens:,} tokens are unknown to the vocabulary",
            advice="look for damaged text",
        )
    if tokens.changed_texts:
        yield Finding(
            severity="note",
            share=tokens.changed_texts / max(tokens.compared_texts, 1),
            text=f"the tokenizer changes {tokens.changed_texts:,} of {tokens.compared_texts:,} "
            f"texts, such as {tokens.changed_example}",
            advice="nothing to do if that is meant: the model never sees the original form",
        )
