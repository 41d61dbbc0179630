# ruff: noqa: E501
"""Errands: weather to dress for, ways to walk, a market, a kitchen, a bus, dates and clocks."""

import random

from everyday.grammar import Turns, chinese_number, clock, one_of, spoken_clock, table

CITIES = (
    "北京 上海 广州 深圳 成都 重庆 武汉 西安 南京 天津 苏州 长沙 青岛 大连 厦门 昆明 郑州 济南 "
    "哈尔滨 沈阳 福州 南宁 贵阳 兰州 太原 海口 拉萨 桂林 洛阳 扬州 绍兴 无锡 宁波 珠海 烟台"
).split()
WEATHERS = table("""
晴 | 阳光很好 | 出门戴帽子，多喝水
多云 | 云比较多 | 适合出门走走
小雨 | 有小雨 | 出门带伞
大雨 | 雨很大 | 尽量别出门，要出去就穿雨靴
雷阵雨 | 会打雷下雨 | 别在树下躲雨，带好伞
大风 | 风很大 | 关好窗户，少骑车
小雪 | 飘小雪 | 穿厚一点，走路小心滑
大雪 | 雪很大 | 穿羽绒服和防滑的鞋
雾 | 有雾 | 开车慢一点，打开雾灯
阴 | 没有太阳 | 加件外套
沙尘 | 有沙尘 | 戴口罩，少在外面走
高温 | 非常热 | 避开中午出门，注意防晒
""")
SPOTS = (
    "邮局 银行 医院 药店 超市 菜市场 公交站 地铁站 学校 公园 书店 面包店 派出所 加油站 电影院 "
    "图书馆 体育馆 火车站 幼儿园 理发店 咖啡馆 水果店 花店 博物馆 广场"
).split()
MARKET = table("""
苹果 斤 4 9
香蕉 斤 3 6
西瓜 斤 1 4
葡萄 斤 6 15
白菜 斤 1 3
土豆 斤 2 4
西红柿 斤 3 7
黄瓜 斤 3 6
鸡蛋 斤 5 8
猪肉 斤 12 25
牛肉 斤 30 50
豆腐 块 2 5
鱼 条 15 40
面包 个 3 12
牛奶 盒 3 8
铅笔 支 1 3
本子 本 2 8
橡皮 块 1 3
玫瑰 支 5 12
雨伞 把 15 50
毛巾 条 8 25
杯子 个 9 35
袜子 双 5 15
蜡烛 根 1 5
馒头 个 1 2
""")
DISHES = table("""
西红柿炒鸡蛋 | 先把鸡蛋炒熟盛出，再炒西红柿，最后一起翻炒，加盐
煮面条 | 水开了下面条，煮三分钟，加青菜和盐
蒸米饭 | 米洗两遍，水没过米一个指节，煮熟后焖十分钟
凉拌黄瓜 | 黄瓜拍碎，加蒜、醋、盐和一点香油，拌匀
煮鸡蛋 | 冷水下锅，水开后煮八分钟，放进凉水里好剥壳
小米粥 | 小米洗净，水开下锅，小火煮三十分钟，常搅一搅
炒土豆丝 | 土豆切丝泡水，大火快炒，加醋和盐
包饺子 | 和面，拌馅，擀皮，包好后水开下锅，浮起来再煮两分钟
紫菜汤 | 水开放紫菜和虾皮，淋蛋液，加盐和香油
炒青菜 | 青菜洗净沥干，热锅下蒜，大火炒一分钟，加盐
红烧茄子 | 茄子切块煎软，加酱油、糖和水，烧到收汁
蒸鸡蛋羹 | 鸡蛋加一倍半的温水打匀，盖上盘子蒸十分钟
煎豆腐 | 豆腐切片擦干，小火煎到两面金黄，撒盐和葱花
泡茶 | 水烧开，茶叶放杯里，第一泡等三十秒就能喝
绿豆汤 | 绿豆泡一小时，加水煮到开花，放凉加糖
""")
WEEK = "一二三四五六日"
VEHICLES = "公交车 地铁 出租车 自行车 火车 飞机 轮船 高铁".split()


def weather(rng: random.Random) -> Turns:
    city, (name, seen, advice) = rng.choice(CITIES), rng.choice(WEATHERS)
    low = rng.randint(-12, 26)
    high = low + rng.randint(4, 11)
    kind = rng.randrange(3)
    if kind == 0:
        question = one_of(rng, ["[明天|今天|后天]{c}{w}，[穿什么|要注意什么|出门带什么]？", "{c}[明天|今天]{w}，{l}到{h}度，[怎么穿|有什么建议]？", "听说{c}{w}，[要准备什么|出门行吗]？"], c=city, w=name, l=low, h=high)  # fmt: skip
        return [
            (
                question,
                one_of(
                    rng,
                    ["{s}，{a}。", "{a}[吧|]，{s}。", "[{w}的话|这种天气]，{a}。"],
                    s=seen,
                    a=advice,
                    w=name,
                ),
            )
        ]
    if kind == 1:
        report = f"{city}明天{name}，最低{low}度，最高{high}度。"
        asked, answer = rng.choice(
            [("最高多少度？", f"{high}度。"), ("最低几度？", f"{low}度。"), ("温差多大？", f"相差{high - low}度。"),
             ("是什么天气？", f"{name}。"), ("哪个城市？", f"{city}。"), ("要带伞吗？", "要带，有雨。" if "雨" in name else "不用，没有雨。")]
        )  # fmt: skip
        return [(f"{report}{asked}", answer)]
    season, how = rng.choice([("春天", "暖和，花都开了"), ("夏天", "很热，白天长"), ("秋天", "凉爽，树叶变黄"), ("冬天", "冷，有的地方会下雪")])  # fmt: skip
    other = rng.choice(["春天", "夏天", "秋天", "冬天"])
    question = one_of(
        rng,
        ["{s}[天气怎么样|是什么样的|有什么特点]？", "说说{s}", "{c}的{s}[冷吗|热吗|好玩吗]？"],
        s=season,
        c=city,
    )
    return [(question, one_of(rng, ["{s}{h}。", "{s}[一般|]{h}[，和{o}不一样|]。"], s=season, h=how, o=other if other != season else "其他季节"))]  # fmt: skip


def directions(rng: random.Random) -> Turns:
    spot, mark, _ = rng.sample(SPOTS, 3)
    side, metres, turn = (
        rng.choice("左右"),
        rng.choice([50, 100, 150, 200, 300, 400, 500, 800]),
        rng.choice("左右"),
    )
    lights = rng.choice(["第一个", "第二个", "第三个"])
    way = one_of(rng, ["从{m}往前走{n}米，到{l}路口{t}转，{s}就在{d}边", "出了{m}向{t}走{n}米，过{l}红绿灯，{s}在{d}手边", "沿着这条路走{n}米，看到{m}{t}转，再走几步就是{s}"], m=mark, n=metres, l=lights, t=turn, s=spot, d=side)  # fmt: skip
    question = one_of(rng, ["[请问|你好，|]{s}怎么走？", "[我想去|要去]{s}，[怎么走|往哪边走]？", "{s}[在哪|在哪里]？我[现在|]在{m}", "从{m}到{s}怎么[走|去]？"], s=spot, m=mark)  # fmt: skip
    if rng.random() < 0.5:
        return [(f"{way}。{one_of(rng, ['请问要走多少米？', '一共走几米？'])}", f"{metres}米。")]
    told = [(f"路线：{way}。\n{question}", f"{way}。")]
    follow, answer = rng.choice([("远吗？", f"不远，大约{metres}米。"), ("在左边还是右边？", f"在{side}边。" if side in way and f"在{side}" in way else "看路牌就知道了。"), ("要走多久？", f"走路大约{max(1, metres // 70)}分钟。")])  # fmt: skip
    return [*told, (follow, answer)] if "左边" not in answer or side == "左" else told


def market(rng: random.Random) -> Turns:
    first, second = rng.sample(MARKET, 2)
    price, other = (
        rng.randint(int(first[2]), int(first[3])),
        rng.randint(int(second[2]), int(second[3])),
    )
    n, m = rng.randint(2, 9), rng.randint(1, 5)
    count = rng.choice([str(n), "两" if n == 2 else chinese_number(n)])
    kind = rng.randrange(5)
    f, fu, s, su = first[0], first[1], second[0], second[1]
    if kind == 0:
        q = one_of(rng, ["{f}{p}元一{u}，[买|要]{n}{u}[多少钱|一共多少钱|要付多少]？", "{f}一{u}{p}块，{n}{u}[呢|几块钱|要多少钱]？"], f=f, p=price, u=fu, n=count)  # fmt: skip
        return [
            (
                q,
                one_of(
                    rng,
                    ["{n}乘{p}等于{t}，[一共|要付]{t}元。", "[一共|]{t}元。"],
                    n=n,
                    p=price,
                    t=n * price,
                ),
            )
        ]
    if kind == 1:
        q = one_of(rng, ["{f}{p}元一{u}，{s}{o}元一{v}，各买一[样|份]，[一共|总共]多少？", "买一{u}{f}{p}元，一{v}{s}{o}元，加起来多少钱？"], f=f, p=price, u=fu, s=s, o=other, v=su)  # fmt: skip
        return [
            (
                q,
                one_of(
                    rng,
                    ["{p}加{o}等于{t}，[一共|]{t}元。", "[一共|总共]{t}元。"],
                    p=price,
                    o=other,
                    t=price + other,
                ),
            )
        ]
    if kind == 2:
        paid = rng.choice([x for x in (10, 20, 50, 100, 200, 500) if x >= n * price])
        q = one_of(rng, ["{f}{p}元一{u}，买{n}{u}，给了{g}元，找多少？", "我拿{g}块钱买{n}{u}{f}，每{u}{p}块，[还剩|找回]多少？"], f=f, p=price, u=fu, n=count, g=paid)  # fmt: skip
        return [(q, one_of(rng, ["{f}要{t}元，{g}减{t}等于{r}，[找|还剩]{r}元。", "[找|剩]{r}元。"], f=f, t=n * price, g=paid, r=paid - n * price))]  # fmt: skip
    if kind == 3:
        dearer = f if price / 1 > other else s
        answer = "一样贵。" if price == other else f"{dearer}贵，贵{abs(price - other)}元。"
        return [(one_of(rng, ["{f}{p}元，{s}{o}元，[哪个贵|哪样更贵]？", "{p}元的{f}和{o}元的{s}比，哪个贵？贵多少？"], f=f, p=price, s=s, o=other), answer)]  # fmt: skip
    q = one_of(
        rng, ["[老板|阿姨|师傅]，{f}[怎么卖|多少钱一{u}]？", "{f}[什么价|贵不贵]"], f=f, u=fu
    )
    turns = [(q, f"{price}元一{fu}。"), (one_of(rng, ["来{n}{u}", "[要|称|拿]{n}{u}"], n=count, u=fu), f"好的，{n}{fu}一共{n * price}元。")]  # fmt: skip
    if rng.random() < 0.5:
        turns.append((f"再来{chinese_number(m) if m != 2 else '两'}{su}{s}，{other}元一{su}", f"{s}{m * other}元，加上{f}{n * price}元，一共{m * other + n * price}元。"))  # fmt: skip
    return turns


def cooking(rng: random.Random) -> Turns:
    dish, steps = rng.choice(DISHES)
    parts = steps.split("，")
    q = one_of(
        rng,
        [
            "{d}怎么做？",
            "[教我|告诉我怎么]{d}",
            "[想学|我想]{d}，[步骤是什么|要怎么做]？",
            "{d}[难吗|要几步]？",
        ],
        d=dish,
    )
    if "难吗" in q:
        return [(q, f"不难，{parts[0]}，{parts[1]}，一步一步来就好。")]
    if "几步" in q:
        return [(q, f"{len(parts)}步：{steps}。")]
    turns = [(q, f"{steps}。")]
    if rng.random() < 0.5:
        turns.append(rng.choice([("第一步是什么？", f"{parts[0]}。"), ("最后一步呢？", f"{parts[-1]}。"), ("一共几步？", f"{len(parts)}步。")]))  # fmt: skip
    return turns


def calendar(rng: random.Random) -> Turns:
    day, n = rng.randrange(7), rng.randint(1, 10)
    at, length = (
        rng.randrange(6 * 60, 20 * 60, 15),
        rng.choice([15, 30, 45, 60, 75, 90, 120, 150, 180]),
    )
    kind = rng.randrange(6)
    if kind == 0:
        when = (day + n) % 7
        return [(one_of(rng, ["今天[星期|周]{a}，{n}天后[是|]星期几？", "星期{a}过{n}天是[星期几|周几]？"], a=WEEK[day], n=n), f"星期{WEEK[when]}。")]  # fmt: skip
    if kind == 1:
        return [(one_of(rng, ["{t}[出发|开始]，[走了|花了|用了]{m}分钟，[几点到|几点结束]？", "{t}再过{m}分钟是几点？"], t=spoken_clock(at), m=length), one_of(rng, ["{e}。", "{s}，也就是{e}。"], e=clock(at + length), s=spoken_clock(at + length)))]  # fmt: skip
    if kind == 2:
        return [(one_of(rng, ["从{a}到{b}[有多久|是多长时间|过了多久]？", "{a}开始，{b}结束，一共多少分钟？"], a=clock(at), b=clock(at + length)), f"{length}分钟。")]  # fmt: skip
    if kind == 3:
        month, day_of = rng.randint(1, 12), rng.randint(1, 20)
        return [(f"{month}月{day_of}日再过{n}天是几号？" if day_of + n <= 28 else f"{month}月{day_of}日的前一天是几号？", f"{month}月{day_of + n}日。" if day_of + n <= 28 else f"{month}月{day_of - 1}日。" if day_of > 1 else "上个月的最后一天。")]  # fmt: skip
    if kind == 4:
        spoken = spoken_clock(at)
        return [
            (
                one_of(rng, ["把“{s}”写成数字[时间|的形式]", "{s}用数字怎么写？"], s=spoken),
                f"{clock(at)}。",
            )
        ]
    age, years = rng.randint(3, 70), rng.randint(2, 30)
    return [(one_of(rng, ["我今年{a}岁，{y}年后[几岁|多大]？", "[弟弟|爷爷|小红|老师]今年{a}岁，再过{y}年多少岁？"], a=age, y=years), one_of(rng, ["{t}岁。", "{a}加{y}等于{t}，{t}岁。"], a=age, y=years, t=age + years))]  # fmt: skip


def travel(rng: random.Random) -> Turns:
    a, b = rng.sample(CITIES, 2)
    vehicle, other = rng.sample(VEHICLES, 2)
    hours, price, at = (
        rng.randint(1, 9),
        rng.randrange(20, 900, 5),
        rng.randrange(6 * 60, 14 * 60, 10),
    )
    text = f"{a}到{b}的{vehicle}{clock(at)}出发，{clock(at + hours * 60)}到，票价{price}元。"
    asked, answer = rng.choice(
        [("几点出发？", f"{clock(at)}出发。"), ("几点到？", f"{clock(at + hours * 60)}到。"), ("票多少钱？", f"{price}元。"),
         ("要坐多久？", f"{hours}小时。"), ("到哪里？", f"到{b}。"), ("从哪里出发？", f"从{a}出发。"), ("坐什么去？", f"坐{vehicle}。"),
         ("两张票多少钱？", f"两张{2 * price}元。")]
    )  # fmt: skip
    kind = rng.randrange(3)
    if kind == 0:
        more = rng.choice(
            [
                ("那票价呢？", f"{price}元。"),
                ("几点能到？", f"{clock(at + hours * 60)}。"),
                ("路上多久？", f"{hours}小时。"),
            ]
        )
        return [(text + asked, answer), more] if more[1] != answer else [(text + asked, answer)]
    if kind == 1:
        q = one_of(
            rng,
            ["去{b}[坐|]{v}好还是{o}好？", "从{a}去{b}，{v}和{o}选哪个？"],
            a=a,
            b=b,
            v=vehicle,
            o=other,
        )
        return [
            (
                q,
                one_of(
                    rng,
                    [
                        "看时间和钱，[赶时间选快的|不急选便宜的]。",
                        "{v}[方便一些|也可以]，提前[看好票|查好时间]。",
                    ],
                    v=vehicle,
                ),
            )
        ]
    q = one_of(
        rng,
        [
            "[要去|想去|准备去]{b}[旅游|玩|出差]，[带什么|要准备什么]？",
            "第一次去{b}，[有什么建议|注意什么]？",
        ],
        b=b,
    )
    return [(q, one_of(rng, ["带好身份证、[充电器|雨伞|常用药]和[换洗衣服|水杯]。", "先[查天气|订好住处]，再[看路线|列清单]，[证件别忘了|早点出门]。", "看看{b}的天气，[穿舒服的鞋|少带东西]。"], b=b))]  # fmt: skip
