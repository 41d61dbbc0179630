# ruff: noqa: E501
"""Following an instruction: count, sort, reverse, extract, rewrite, fill in, classify, format."""

import json
import random

from everyday.errands import CITIES, MARKET, SPOTS
from everyday.grammar import Turns, chinese_number, clock, one_of, table
from everyday.knowledge import ANIMALS, COUNTRIES, ENGLISH
from everyday.smalltalk import ACTIVITIES, COLOURS, FOODS

SURNAMES = "王 李 张 刘 陈 杨 赵 黄 周 吴 徐 孙 胡 朱 高 林 何 郭 马 罗".split()
GIVEN = "明 芳 伟 娜 强 静 磊 洋 艳 勇 杰 娟 涛 超 秀英 建国 小雨 志强 晓丽 文博 思远 子涵 雨桐 家豪".split()
JOBS = (
    "老师 医生 司机 厨师 警察 护士 画家 歌手 工程师 农民 记者 律师 木匠 店员 邮递员 科学家".split()
)
GROUPS: dict[str, list[str]] = {
    "水果": "苹果 香蕉 葡萄 西瓜 桃子 梨 橘子 草莓 樱桃 芒果 菠萝 柠檬".split(),
    "蔬菜": "白菜 土豆 黄瓜 西红柿 萝卜 茄子 菠菜 芹菜 豆角 南瓜 洋葱 辣椒".split(),
    "动物": [row[0] for row in ANIMALS],
    "颜色": COLOURS,
    "城市": CITIES,
    "国家": [row[0] for row in COUNTRIES],
    "职业": JOBS,
    "运动": "篮球 足球 游泳 跑步 乒乓球 羽毛球 滑冰 跳高 体操 网球".split(),
    "交通工具": "汽车 火车 飞机 轮船 自行车 地铁 公交车 摩托车".split(),
    "家具": "桌子 椅子 沙发 床 书柜 衣柜 茶几 凳子".split(),
    "文具": "铅笔 橡皮 尺子 钢笔 本子 圆规 胶水 剪刀".split(),
    "乐器": "钢琴 吉他 二胡 笛子 小提琴 古筝 鼓 琵琶".split(),
    "衣服": "衬衫 裙子 裤子 毛衣 外套 袜子 大衣 背心".split(),
    "食物": FOODS,
    "季节": "春天 夏天 秋天 冬天".split(),
    "天气": "晴天 雨天 雪天 阴天 大风 雾".split(),
    "花": "玫瑰 百合 菊花 牡丹 荷花 兰花 茉莉 桃花".split(),
}
POSITIVE = "味道很好 服务很周到 房间干净 风景真美 电影很感人 老师讲得清楚 孩子玩得开心 交通方便 画得真像 这本书很有意思".split()
NEGATIVE = "菜太咸了 等了两个小时 房间很吵 路上堵车 电影很无聊 椅子坐着不舒服 雨下得没完 水管又漏了 蚊子太多 信号很差".split()
BLANKS = table("""
太阳从___边升起 | 东
一年有___个月 | 12
鱼生活在___里 | 水
蜜蜂会采___ | 蜜
春天___开了 | 花
下雨天要带___ | 伞
小鸟在天上___ | 飞
口渴了要喝___ | 水
饿了要___饭 | 吃
天黑了要开___ | 灯
一心一___ | 意
三心二___ | 意
画蛇添___ | 足
守株待___ | 兔
井底之___ | 蛙
亡羊补___ | 牢
四面八___ | 方
五颜六___ | 色
十全十___ | 美
马到成___ | 功
水滴石___ | 穿
对牛弹___ | 琴
狐假虎___ | 威
刻舟求___ | 剑
""")


def listing(rng: random.Random) -> Turns:
    group, items = rng.choice(list(GROUPS.items()))
    n = rng.randint(2, min(5, len(items)))
    chosen = rng.sample(items, n)
    count = rng.choice([str(n), "两" if n == 2 else chinese_number(n)])
    kind = rng.randrange(4)
    q = one_of(rng, ["[列出|写出|说出|举出|给我]{n}[种|个]{g}", "[请|]说{n}[种|个]{g}[的名字|]", "{g}有哪些？[说|举]{n}个[例子|]"], n=count, g=group)  # fmt: skip
    if kind == 0:
        return [(q + one_of(rng, ["，[每行一个|一行一个]", "，分行写"]), "\n".join(chosen))]
    if kind == 1:
        return [
            (
                q + one_of(rng, ["，[带上序号|编号|用数字编号]"]),
                "\n".join(f"{i}. {c}" for i, c in enumerate(chosen, 1)),
            )
        ]
    if kind == 2:
        return [(q + one_of(rng, ["，[用逗号隔开|用逗号分开]"]), "，".join(chosen))]
    turns = [(q, "、".join(chosen) + "。")]
    if rng.random() < 0.4 and len(items) > n:
        turns.append(
            ("再说一个", rng.choice([item for item in items if item not in chosen]) + "。")
        )
    return turns


def sorting(rng: random.Random) -> Turns:
    kind = rng.randrange(5)
    if kind == 0:
        numbers = rng.sample(range(1, 100), rng.randint(3, 6))
        up = rng.random() < 0.6
        q = one_of(rng, ["把{s}[从小到大|按从小到大]排[列|序|一下]", "{s}，从小到大排列"] if up else ["把{s}[从大到小|按从大到小]排[列|序]", "{s}，从大到小排列"], s="、".join(map(str, numbers)))  # fmt: skip
        return [(q, "、".join(map(str, sorted(numbers, reverse=not up))) + "。")]
    group, items = rng.choice(list(GROUPS.items()))
    chosen = rng.sample(items, min(len(items), rng.randint(3, 6)))
    shown = "、".join(chosen)
    if kind == 1:
        return [
            (
                one_of(rng, ["把{s}倒过来[写|说]", "{s}，倒着念一遍"], s=shown),
                "、".join(reversed(chosen)) + "。",
            )
        ]
    if kind == 2:
        return [
            (
                one_of(rng, ["{s}一共[几|多少]个？", "数一数：{s}，有几个？"], s=shown),
                f"{len(chosen)}个。",
            )
        ]
    if kind == 3:
        at = rng.randrange(len(chosen))
        return [(one_of(rng, ["{s}，第{n}个是[什么|哪个]？", "在{s}里，排第{n}的是？"], s=shown, n=chinese_number(at + 1)), f"{chosen[at]}。")]  # fmt: skip
    other_group, others = rng.choice([pair for pair in GROUPS.items() if pair[0] != group and not set(pair[1]) & set(items)] or [("家具", GROUPS["家具"])])  # fmt: skip
    odd = rng.choice([o for o in others if o not in items])
    mixed = [*chosen[:3], odd]
    rng.shuffle(mixed)
    return [(one_of(rng, ["{s}，哪个[不是同类|和其他不同|不属于{g}]？", "找出不是{g}的：{s}"], s="、".join(mixed), g=group), one_of(rng, ["{o}。", "{o}，它是{h}。"], o=odd, h=other_group))]  # fmt: skip


def classify(rng: random.Random) -> Turns:
    if rng.random() < 0.5:
        good = rng.random() < 0.5
        text = rng.choice(POSITIVE if good else NEGATIVE)
        where = rng.choice(["", "", "昨天", "这次", "说实话，", "我觉得", "总的来说，", "今天"])
        q = one_of(rng, ["“{t}”是[好评还是差评|表扬还是批评]？", "判断[感情|情绪]：{t}。[正面还是负面？|]", "这句话是[满意|高兴]还是[不满|不高兴]：{t}"], t=where + text)  # fmt: skip
        pairs = {"好评": ("好评。", "差评。"), "表扬": ("表扬。", "批评。"), "判断": ("正面。", "负面。"), "满意": ("满意。", "不满。"), "高兴": ("高兴。", "不高兴。")}  # fmt: skip
        for word, pair in pairs.items():
            if word in q:
                if word == "满意":
                    pair = ("满意。", "不满。" if "不满" in q else "不高兴。")
                if word == "高兴" and "不满" in q:
                    pair = ("高兴。", "不满。")
                return [(q, pair[0] if good else pair[1])]
    group = rng.choice([name for name in GROUPS if name != "食物"])
    item = rng.choice(GROUPS[group])
    q = one_of(rng, ["{i}[属于|是]哪一类？", "{i}是什么[东西|类别]？", "把{i}归类"], i=item)
    return [(q, one_of(rng, ["{g}。", "[属于|是]{g}。", "{i}是{g}。"], i=item, g=group))]


def extract(rng: random.Random) -> Turns:
    """A line of facts about a person or a meeting; some of them asked, or put into a form."""
    name = rng.choice(SURNAMES) + rng.choice(GIVEN)
    age, city, job, hobby = (
        rng.randint(8, 80),
        rng.choice(CITIES),
        rng.choice(JOBS),
        rng.choice(ACTIVITIES),
    )
    at, spot, phone = rng.randrange(8 * 60, 20 * 60, 30), rng.choice(SPOTS), "1" + "".join(str(rng.randint(0, 9)) for _ in range(10))  # fmt: skip
    day = "周" + rng.choice("一二三四五六日")
    if rng.random() < 0.5:
        text = one_of(rng, ["{n}今年{a}岁，住在{c}，是一名{j}，喜欢{h}。", "我叫{n}，{a}岁，来自{c}，工作是{j}，平时爱{h}。", "{c}的{j}{n}今年{a}岁，爱好是{h}。"], n=name, a=age, c=city, j=job, h=hobby)  # fmt: skip
        facts = {"姓名": name, "年龄": age, "城市": city, "职业": job, "爱好": hobby}
        asked = {
            "几岁？": f"{age}岁。",
            "住在哪里？": f"{city}。",
            "做什么工作？": f"{job}。",
            "喜欢什么？": f"{hobby}。",
            "叫什么名字？": f"{name}。",
        }
    else:
        text = one_of(rng, ["{d}{t}在{s}见面，联系人{n}，电话{p}。", "通知：{d}{t}，{s}门口集合，找{n}，手机{p}。", "{n}约大家{d}{t}到{s}，有事打{p}。"], d=day, t=clock(at), s=spot, n=name, p=phone)  # fmt: skip
        facts = {"时间": day + clock(at), "地点": spot, "联系人": name, "电话": phone}
        asked = {
            "几点？": f"{clock(at)}。",
            "星期几？": f"{day}。",
            "在哪里？": f"{spot}。",
            "联系谁？": f"{name}。",
            "电话是多少？": f"{phone}。",
        }
    kind = rng.randrange(4)
    if kind == 0:
        keys = rng.sample(list(facts), 2)
        value = json.dumps({key: facts[key] for key in keys}, ensure_ascii=False)
        return [
            (
                one_of(
                    rng,
                    ["[提取|找出]{a}和{b}，用JSON[回答|输出]：{t}", "{t}\n把{a}和{b}写成JSON"],
                    a=keys[0],
                    b=keys[1],
                    t=text,
                ),
                value,
            )
        ]
    if kind == 1:
        key = rng.choice(list(facts))
        return [
            (
                one_of(
                    rng, ["[提取|找出]下面这句话里的{k}：{t}", "{t}\n{k}[是什么|]？"], k=key, t=text
                ),
                f"{facts[key]}",
            )
        ]
    names = rng.sample(list(asked), rng.randint(1, 3))
    turns = [
        (
            one_of(
                rng,
                ["{t}[请问|]{q}", "{t}\n问题：{q}", "根据这句话回答：{t}{q}"],
                t=text,
                q=names[0],
            ),
            asked[names[0]],
        )
    ]
    return turns + [(q, asked[q]) for q in names[1:]]


def letters(rng: random.Random) -> Turns:
    word = rng.choice(ENGLISH)[1].split()[0]
    kind = rng.randrange(4)
    if kind == 0:
        return [
            (one_of(rng, ["把{w}[变成|写成|改成]大写", "{w}的大写[是什么|]"], w=word), word.upper())
        ]
    if kind == 1:
        return [
            (one_of(rng, ["{w}有几个字母？", "单词{w}[多长|几个字母]"], w=word), f"{len(word)}个。")
        ]
    if kind == 2:
        return [
            (
                one_of(rng, ["{w}的第一个字母是[什么|]？", "单词{w}以哪个字母开头？"], w=word),
                f"{word[0]}",
            )
        ]
    phrase = rng.choice(rng.choice(list(GROUPS.values())))
    n = rng.randint(2, 4)
    return [(one_of(rng, ["[重复|说]{n}遍“{p}”", "把“{p}”[写|重复]{n}遍"], p=phrase, n=chinese_number(n) if n != 2 else "两"), "，".join([phrase] * n))]  # fmt: skip


def blank(rng: random.Random) -> Turns:
    text, word = rng.choice(BLANKS)
    q = one_of(
        rng, ["[填空|补全]：{t}。", "{t}，空里填什么？", "[完成句子|填上合适的字]：{t}"], t=text
    )
    return [(q, one_of(rng, ["{w}", "{w}。", "{f}。"], w=word, f=text.replace("___", word)))]


def short(rng: random.Random) -> Turns:
    """Yes or no, one word, one sentence."""
    kind = rng.randrange(3)
    if kind == 0:
        group = rng.choice(list(GROUPS))
        other = rng.choice(list(GROUPS))
        item = rng.choice(GROUPS[group])
        right = item in GROUPS[other]
        return [(one_of(rng, ["{i}是{g}吗？[只回答是或不是|]", "[只用是或不是回答|判断对错]：{i}是{g}"], i=item, g=other), "是。" if right else "不是。")]  # fmt: skip
    thing = rng.choice(rng.choice(list(GROUPS.values())))
    if kind == 1:
        act = rng.choice(ACTIVITIES)
        return [(one_of(rng, ["用“{t}”造句", "用“{t}”[写|说]一句话", "造一个有“{t}”的句子"], t=thing), one_of(rng, ["[我|妈妈|弟弟|老师]很喜欢{t}。", "[今天|昨天]我们说到了{t}。", "[他|她]一边{a}，一边想着{t}。"], t=thing, a=act))]  # fmt: skip
    row = rng.choice(MARKET)
    return [(one_of(rng, ["{t}论什么卖？", "一般说一[什么|几]{t}？[填量词|]", "{t}的量词是什么？"], t=row[0]), one_of(rng, ["{u}。", "一{u}{t}。"], u=row[1], t=row[0]))]  # fmt: skip
