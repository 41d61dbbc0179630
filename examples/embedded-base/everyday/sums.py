# ruff: noqa: E501
"""Arithmetic with right answers: bare sums, comparisons, word problems, a chain of steps."""

import random

from everyday.grammar import Turns, chinese_number, one_of

PEOPLE = "小明 小红 小刚 小丽 小华 小军 小芳 小强 小兰 小东 妈妈 爸爸 老师 爷爷 奶奶 姐姐 哥哥 弟弟 妹妹 叔叔".split()
OBJECTS = "个苹果 支铅笔 本书 颗糖 张邮票 朵花 个气球 块饼干 只鸡 条鱼 元钱 张贴纸 个橘子 辆玩具车 枚硬币".split()


def bare(rng: random.Random) -> Turns:
    sign = rng.choice("++--**//")
    top = rng.choice([10, 20, 50, 100, 100, 1000])
    a, b = rng.randint(0, top), rng.randint(1, top)
    if sign == "-" and b > a and rng.random() < 0.9:
        a, b = b, a
    if sign == "*":
        a, b = rng.randint(1, 12), rng.randint(1, 12 if rng.random() < 0.8 else 99)
    if sign == "/":
        b = rng.randint(1, 12)
        a = b * rng.randint(1, 12)
    answer = {"+": a + b, "-": a - b, "*": a * b, "/": a // max(1, b)}[sign]
    word = {"+": "加", "-": "减", "*": "乘", "/": "除以"}[sign]
    shown = {"+": "+", "-": "-", "*": rng.choice("×*"), "/": rng.choice("÷/")}[sign]
    x, y = (
        (a, b)
        if rng.random() < 0.85 or max(a, b) > 9999
        else (chinese_number(a), chinese_number(b))
    )
    q = one_of(
        rng,
        ["{x}{w}{y}[等于几|等于多少|是多少|得多少|=?]？", "{x}{s}{y}=[？|]", "[计算|算一下|请计算|帮我算]{x}{s}{y}", "{x} {s} {y} = ", "{x}{w}{y}"],
        x=x, y=y, w=word, s=shown,
    )  # fmt: skip
    a_text = one_of(
        rng, ["{r}", "{r}。", "等于{r}。", "{x}{w}{y}等于{r}。"], r=answer, x=x, y=y, w=word
    )
    turns = [(q, a_text)]
    if rng.random() < 0.2:
        c = rng.randint(1, 20)
        turns.append((one_of(rng, ["再加{c}呢？", "再加{c}是多少？"], c=c), f"{answer + c}。"))
    return turns


def compare(rng: random.Random) -> Turns:
    kind = rng.randrange(5)
    a, b = rng.sample(range(1, 200), 2)
    if kind == 0:
        return [(one_of(rng, ["{a}和{b}[哪个大|哪个更大|谁大]？", "比较{a}和{b}，大的是哪个？"], a=a, b=b), one_of(rng, ["{m}[大|更大|]。"], m=max(a, b)))]  # fmt: skip
    if kind == 1:
        return [(one_of(rng, ["{a}和{b}[哪个小|哪个更小]？"], a=a, b=b), f"{min(a, b)}小。")]
    if kind == 2:
        return [
            (
                one_of(rng, ["{a}是[奇数还是偶数|单数还是双数]？"], a=a),
                "偶数。" if a % 2 == 0 else "奇数。",
            )
        ]
    if kind == 3:
        numbers = rng.sample(range(1, 100), rng.randint(3, 5))
        shown = "、".join(map(str, numbers))
        q, r = rng.choice(
            [
                ("最大的", max(numbers)),
                ("最小的", min(numbers)),
                ("第一个", numbers[0]),
                ("最后一个", numbers[-1]),
            ]
        )
        return [
            (
                one_of(
                    rng, ["{s}里{q}数是[多少|几|哪个]？", "[找出|说出]{s}中{q}数"], s=shown, q=q
                ),
                f"{r}。",
            )
        ]
    step, start = rng.randint(1, 10), rng.randint(1, 30)
    row = [start + step * i for i in range(4)]
    return [(one_of(rng, ["{s}，下一个数是[多少|几]？", "找规律：{s}，后面是[什么|几]？"], s="，".join(map(str, row))), f"{row[-1] + step}。")]  # fmt: skip


def story_sum(rng: random.Random) -> Turns:
    who, other = rng.sample(PEOPLE, 2)
    thing = rng.choice(OBJECTS)
    a, b = rng.randint(2, 60), rng.randint(1, 30)
    kind = rng.randrange(6)
    slots = {"w": who, "o": other, "t": thing, "a": a, "b": b, "u": thing[0], "x": thing[1:]}
    if kind == 0:
        q, r, s = (
            "{w}有{a}{t}，[又买了|又得到|{o}又给了]{b}{u}，[一共有|现在有][多少|几]{u}？",
            a + b,
            "{a}加{b}等于{r}",
        )
    elif kind == 1:
        a, b = max(a, b), min(a, b)
        slots |= {"a": a, "b": b}
        q, r, s = (
            "{w}有{a}{t}，[给了{o}|用掉|送出去]{b}{u}，[还剩|还有|剩下][多少|几]{u}？",
            a - b,
            "{a}减{b}等于{r}",
        )
    elif kind == 2:
        a, b = rng.randint(2, 12), rng.randint(2, 12)
        slots |= {"a": a, "b": b}
        q, r, s = (
            "[每人|每个盒子|每天]{a}{t}，{b}[人|盒|天]一共[多少|几]{u}？",
            a * b,
            "{a}乘{b}等于{r}",
        )
    elif kind == 3:
        b = rng.randint(2, 9)
        a = b * rng.randint(2, 12)
        slots |= {"a": a, "b": b}
        q, r, s = (
            "{a}{t}平均分给{b}个人，每人[分到|得到|][多少|几]{u}？",
            a // b,
            "{a}除以{b}等于{r}",
        )
    elif kind == 4:
        q, r, s = "{w}有{a}{t}，{o}比{w}多{b}{u}，{o}有[多少|几]{u}？", a + b, "{a}加{b}等于{r}"
    else:
        c = rng.randint(1, 10)
        slots |= {"c": c}
        q, r, s = (
            "{w}有{a}{t}，买了{b}{u}，又给了{o}{c}{u}，现在有[多少|几]{u}？",
            a + b - c,
            "{a}加{b}减{c}等于{r}",
        )
    slots["r"] = r
    answer = one_of(rng, [s + "，[一共|]{r}{u}。", "{r}{u}。"] if kind in (0, 2) else [s + "，是{r}{u}。", "{r}{u}。"], **slots)  # fmt: skip
    return [(one_of(rng, [q], **slots), answer)]
