"""Did it get better? The findings about one tuned model, in plain words, English and Chinese.

Every sentence rests on numbers of the report: a change is called one only where its interval
leaves zero out, and the prompts where it can be seen are named. Order: what was to be learned,
what was lost, how answers misbehave.
"""

from collections.abc import Callable, Iterator, Sequence

from glmforge.compare.prompts import Prompt
from glmforge.compare.report import Finding, Level, ModelReport
from glmforge.compare.scoring import Scored
from glmforge.compare.statistics import FEWEST, is_change

_SHOWN = 5
_HARDLY = 10  # general questions that the base must pass for forgetting to be measured

AREAS = {
    "arithmetic": "算术",
    "facts": "常识",
    "instructions": "指令遵循",
    "safety": "安全",
}
"""Areas of the general set, by their Chinese names."""

Asks = Callable[[Scored], bool]


def verdict_on(
    tuned: ModelReport, base: ModelReport, prompts: Sequence[Prompt]
) -> tuple[Finding, ...]:
    """Return the findings about a tuned model; see the module.

    Args:
        tuned: the model.
        base: what it is compared with.
        prompts: all prompts, in the order of the answers.
    """
    look = _Look(tuned, base, prompts)
    return tuple(
        finding
        for part in (
            _format, _check, _references, _loss, _judge, _general, _loops, _cut, _empty,
            _unchanged, _memorised,
        )
        for finding in part(look)
    )  # fmt: skip


def in_one_line(findings: Sequence[Finding]) -> tuple[str, str]:
    """Return a verdict as one English and one Chinese sentence."""
    english = "; ".join(finding.english for finding in findings)
    chinese = "；".join(finding.chinese for finding in findings)
    return english, chinese


class _Look:
    """The greedy answers of both models to the user's prompts, side by side."""

    def __init__(self, tuned: ModelReport, base: ModelReport, prompts: Sequence[Prompt]) -> None:
        self.tuned, self.base, self.prompts = tuned, base, prompts
        self.asked = [n for n, prompt in enumerate(prompts) if prompt.group == "asked"]
        self.general = [n for n, prompt in enumerate(prompts) if prompt.group == "general"]
        self.table = tuned.tables["greedy"]

    def change(self, name: str) -> int:
        """1 where a measure rose, -1 where it fell, 0 where that may be chance."""
        cell = self.table[name]
        if cell.change is None or not is_change(cell.change):
            return 0
        return 1 if cell.change.value > 0 else -1

    def means(self, name: str) -> tuple[float, float]:
        """The tuned model's mean, and the base's."""
        return self.table[name].mean.value, self.base.tables["greedy"][name].mean.value

    def hits(self, asks: Asks) -> tuple[list[str], int, int]:
        """Prompts whose tuned answer fits, how many of the base's do, and of how many."""
        mine, theirs = self.tuned.answers["greedy"], self.base.answers["greedy"]
        ids = [self.prompts[n].id for n in self.asked if asks(mine[n])]
        return ids, sum(asks(theirs[n]) for n in self.asked), len(self.asked)


def _few(look: _Look, name: str) -> tuple[str, str]:
    """A word of caution where prompts are few."""
    count = look.table[name].mean.count
    if count >= FEWEST:
        return "", ""
    prompts = "prompt" if count == 1 else "prompts"
    return f" (only {count} {prompts}: too few to tell)", f"（仅{count}条提示，难以判断）"


def _share_finding(
    look: _Look,
    topic: str,
    holds: Callable[[Scored], bool | None],
    english: Sequence[str],
    chinese: Sequence[str],
) -> Finding:
    """A share of answers that are right, among those it is asked of: learned, as before, lost."""
    count = look.table[topic].mean.count
    ids, before, _ = look.hits(lambda answer: bool(holds(answer)))
    wrong, _, _ = look.hits(lambda answer: holds(answer) is False)
    turn = look.change(topic)
    few = _few(look, topic)
    levels: tuple[Level, Level, Level] = ("note", "good", "bad")
    return Finding(
        topic=topic,
        level=levels[turn],
        english=f"{english[turn]}: {len(ids)}/{count} vs {before}/{count}{few[0]}",
        chinese=f"{chinese[turn]}：{len(ids)}/{count}，原模型 {before}/{count}{few[1]}",
        prompts=tuple(wrong[:_SHOWN]),
    )


def _format(look: _Look) -> Iterator[Finding]:
    if "format" in look.table:
        yield _share_finding(
            look,
            "format",
            lambda a: a.format_holds,
            ("keeps the format as before", "learned the format", "lost the format"),
            ("格式与之前无明显差别", "学会了格式", "丢失了格式"),
        )


def _check(look: _Look) -> Iterator[Finding]:
    if "check" in look.table:
        yield _share_finding(
            look,
            "check",
            lambda a: a.passes,
            ("passes its checks as before", "passes more checks", "passes fewer checks"),
            ("通过检查的数量无明显差别", "通过了更多检查", "通过的检查变少了"),
        )


def _references(look: _Look) -> Iterator[Finding]:
    if "rouge_l" not in look.table:
        return
    after, before = look.means("rouge_l")
    turn = look.change("rouge_l")
    exact, exact_before, _ = look.hits(lambda a: bool(a.exact))
    count = look.table["exact"].mean.count
    few = _few(look, "rouge_l")
    words = ("as near to the references as before", "nearer to the references",
             "farther from the references")  # fmt: skip
    chinese = ("与参考答案的接近程度无明显差别", "更接近参考答案", "更远离参考答案")
    levels: tuple[Level, Level, Level] = ("note", "good", "bad")
    yield Finding(
        topic="references",
        level=levels[turn],
        english=f"{words[turn]}: ROUGE-L {after:.2f} vs {before:.2f}, exact {len(exact)}/{count} "
        f"vs {exact_before}/{count}{few[0]}",
        chinese=f"{chinese[turn]}：ROUGE-L {after:.2f}，原模型 {before:.2f}；完全一致 "
        f"{len(exact)}/{count}，原模型 {exact_before}/{count}{few[1]}",
    )


def _loss(look: _Look) -> Iterator[Finding]:
    after, before, change = look.tuned.loss, look.base.loss, look.tuned.loss_change
    if after is None or before is None or change is None:
        return
    told = is_change(change)
    level: Level = "note" if not told else "good" if change.value < 0 else "bad"
    rows = "row" if change.count == 1 else "rows"
    few, few_chinese = "", ""
    if change.count < FEWEST:
        few = f" (only {change.count} {rows}: too few to tell)"
        few_chinese = f"（仅{change.count}行，难以判断）"
    elif not told:
        few, few_chinese = " (may be chance)", "（可能只是偶然）"
    yield Finding(
        topic="loss",
        level=level,
        english=f"validation loss {after:.3f} vs {before:.3f} nats a token{few}",
        chinese=f"验证损失 {after:.3f}，原模型 {before:.3f}（每词元，自然对数）{few_chinese}",
    )


def _judge(look: _Look) -> Iterator[Finding]:
    judged, cell = look.tuned.judged, look.tuned.judge_change
    if judged is None or cell is None:
        return
    wins, losses, count = judged.count("tuned"), judged.count("base"), len(judged)
    told = is_change(cell.mean)
    level: Level = "note" if not told else "good" if wins > losses else "bad"
    lost = [look.prompts[n].id for n, found in zip(look.asked, judged) if found == "base"]
    yield Finding(
        topic="judge",
        level=level,
        english=f"the judge prefers it in {wins}/{count}, the base in {losses}/{count}, "
        f"neither in {count - wins - losses}/{count}",
        chinese=f"评审更喜欢它 {wins}/{count}，更喜欢原模型 {losses}/{count}，"
        f"不分上下 {count - wins - losses}/{count}",
        prompts=tuple(lost[:_SHOWN]),
    )


def _general(look: _Look) -> Iterator[Finding]:
    cell = look.tuned.general.get("all")
    if cell is None:
        return
    mine, theirs = look.tuned.answers["greedy"], look.base.answers["greedy"]
    count = len(look.general)
    kept = sum(bool(mine[n].passes) for n in look.general)
    had = sum(bool(theirs[n].passes) for n in look.general)
    lost = [n for n in look.general if theirs[n].passes and not mine[n].passes]
    gained = kept - had + len(lost)
    numbers = f"{kept}/{count} vs {had}/{count} general questions"
    chinese = f"通用问题 {kept}/{count}，原模型 {had}/{count}"
    moved = f" (lost {len(lost)}, gained {gained})"
    moved_chinese = f"（答错了{len(lost)}道原来会的，新答对{gained}道）"
    level: Level = "good"
    if is_change(cell.change) and kept < had:
        worst = max(AREAS, key=lambda area: sum(look.prompts[n].area == area for n in lost))
        level = "bad"
        english = f"forgot: {numbers}{moved}, most in {worst}"
        chinese = f"有遗忘：{chinese}{moved_chinese}，主要在{AREAS[worst]}"
    elif had == 0:
        level = "note"
        english = f"nothing to forget: the base passes 0/{count} general questions"
        chinese = f"没有可遗忘的：原模型通用问题 0/{count}"
    elif had < _HARDLY:
        level = "note"
        english = f"forgetting can hardly be measured: {numbers}{moved}, the base knows few"
        chinese = f"难以衡量遗忘：{chinese}{moved_chinese}，原模型会的太少"
    else:
        english = f"forgot nothing measurable: {numbers}{moved}"
        chinese = f"没有可测量的遗忘：{chinese}{moved_chinese}"
    yield Finding(
        topic="general",
        level=level,
        english=english,
        chinese=chinese,
        prompts=tuple(look.prompts[n].id for n in lost[:_SHOWN]),
    )


def _fault(
    look: _Look, topic: str, measure: str, asks: Asks, words: tuple[str, str], *, always: bool
) -> Iterator[Finding]:
    """A way in which answers misbehave: how many do, and which; `measure` is their share."""
    ids, before, count = look.hits(asks)
    if not ids and not before and not always:
        return
    turn = look.change(measure)
    levels: tuple[Level, Level, Level] = ("note", "bad", "good")
    doubt = ("", "")
    if len(ids) != before and not turn:
        few = _few(look, measure)
        doubt = few if few[0] else (" (may be chance)", "（可能只是偶然）")
    yield Finding(
        topic=topic,
        level=levels[turn],
        english=f"{words[0]} {len(ids)}/{count} (base {before}/{count}){doubt[0]}",
        chinese=f"{words[1]} {len(ids)}/{count}（原模型 {before}/{count}）{doubt[1]}",
        prompts=tuple(ids[:_SHOWN]),
    )


def _loops(look: _Look) -> Iterator[Finding]:
    words = ("repeats in", "循环重复")
    yield from _fault(look, "loops", "looped", lambda a: bool(a.loop), words, always=True)


def _cut(look: _Look) -> Iterator[Finding]:
    words = ("cut by length in", "因长度被截断")
    yield from _fault(look, "cut", "cut", lambda a: a.stop_reason == "length", words, always=True)


def _empty(look: _Look) -> Iterator[Finding]:
    words = ("empty predictions:", "空回答")
    yield from _fault(look, "empty", "empty", lambda a: not a.text.strip(), words, always=False)


def _unchanged(look: _Look) -> Iterator[Finding]:
    mine, theirs = look.tuned.answers["greedy"], look.base.answers["greedy"]
    same = sum(mine[n].text == theirs[n].text for n in look.asked)
    count = len(look.asked)
    # Other losses are other weights, though the likeliest answers to a few questions stay.
    if same == count >= FEWEST and look.tuned.loss == look.base.loss:
        yield Finding(
            topic="unchanged",
            level="bad",
            english=f"answers exactly as the base in {same}/{count}: the tuning changes nothing",
            chinese=f"{same}/{count} 的回答与原模型完全一样：微调没有改变任何东西",
        )
    elif 2 * same >= count:
        yield Finding(
            topic="unchanged",
            level="note",
            english=f"answers exactly as the base in {same}/{count}",
            chinese=f"{same}/{count} 的回答与原模型完全一样",
        )


def _memorised(look: _Look) -> Iterator[Finding]:
    seen, held = look.tuned.parts.get("seen", {}), look.tuned.parts.get("held_out", {})
    if "rouge_l" not in seen or "rouge_l" not in held:
        return
    known, new = seen["rouge_l"].mean, held["rouge_l"].mean
    if min(known.count, new.count) >= FEWEST and known.low > new.high:
        yield Finding(
            topic="memorised",
            level="note",
            english=f"much nearer on prompts it was trained on: ROUGE-L {known.value:.2f} "
            f"({known.count} seen) vs {new.value:.2f} ({new.count} held out)",
            chinese=f"训练中见过的提示明显更接近：ROUGE-L {known.value:.2f}（{known.count} 条见过）"
            f"，{new.value:.2f}（{new.count} 条未见过）",
        )
