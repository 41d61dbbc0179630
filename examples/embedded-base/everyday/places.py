"""Invented places with facts of their own, asked in many ways: looking up what was once learned.

Three hundred libraries, pools, clinics, inns and the like, each with a dozen facts that never
change, so that a question in new words has the answer that another question had. Questions are
direct, indirect ("still open at nine?"), sums ("two tickets?") and short follow-ups in a dialogue.
None of the places is a shop on the internet.
"""

import random
from dataclasses import dataclass

from everyday.grammar import Turns, chinese_number, clock, one_of, say, spoken_clock, table

KINDS = table("""
图书馆 | 借阅 | 办证 | 自习座位
健身房 | 锻炼 | 办卡 | 私教课
游泳馆 | 游泳 | 买票 | 游泳课
民宿 | 住店 | 订房 | 早餐
酒店 | 住店 | 订房 | 接站服务
牙科诊所 | 看牙 | 挂号 | 洗牙
博物馆 | 参观 | 约票 | 讲解
动物园 | 游玩 | 买票 | 喂养体验
植物园 | 游玩 | 买票 | 科普课
驾校 | 学车 | 报名 | 陪练
琴行 | 学琴 | 报名 | 试听课
画室 | 学画 | 报名 | 体验课
剧院 | 看戏 | 买票 | 后台参观
电影院 | 看电影 | 买票 | 包场
滑雪场 | 滑雪 | 买票 | 教练课
露营地 | 露营 | 订营位 | 篝火晚会
采摘园 | 摘水果 | 预约 | 农家午饭
羽毛球馆 | 打球 | 订场 | 陪打
瑜伽馆 | 练瑜伽 | 办卡 | 体验课
自习室 | 自习 | 订座 | 储物柜
宠物医院 | 给宠物看病 | 挂号 | 洗澡
理发店 | 理发 | 预约 | 烫染
照相馆 | 拍照 | 预约 | 证件照
洗车店 | 洗车 | 预约 | 打蜡
干洗店 | 洗衣服 | 下单 | 皮鞋护理
搬家公司 | 搬家 | 预约 | 打包服务
租车行 | 租车 | 订车 | 儿童座椅
科技馆 | 参观 | 约票 | 天文课
温泉馆 | 泡温泉 | 买票 | 按摩
茶馆 | 喝茶 | 订座 | 茶艺课
书法班 | 学书法 | 报名 | 试听课
攀岩馆 | 攀岩 | 买票 | 教练课
幼儿园 | 入园 | 报名 | 延时班
养老院 | 入住 | 登记 | 康复训练
汽车站 | 坐车 | 买票 | 行李寄存
码头 | 坐船 | 买票 | 夜游
""")
NAMES = (
    "云岭 青松 白鹭 晨光 望江 明月 听雨 南山 北湖 东篱 西溪 金桥 银杏 红枫 紫藤 蓝湾 翠竹 星河 "
    "海棠 石榴 丁香 长风 落霞 归燕 老街 新月 小满 谷雨 清源 半山 临水 花间 松涛 飞鸿 远山 朝阳 "
    "夏荷 秋实 冬青 春晓 和平 友谊 建设 光明 大众 永安 福林 吉祥 同乐 康宁"
).split()
ASSISTANTS = "阿岭 小鹿 团团 小舟 阿布 果果 小满 豆豆 小雨 阿宁 星星 小白 乐乐 小竹 暖暖".split()
STREETS = (
    "解放路 人民路 中山路 文化街 滨河路 学府路 花园路 建国路 长江路 古城街 新华路 湖滨路".split()
)
NEARS = "地铁二号线站口 市政府对面 老火车站旁边 人民公园南门 第一中学隔壁 农贸市场楼上".split()
REST_DAYS = "周一 周二 周三 没有".split()
AUDIENCES = "学生 老人 军人 教师 残疾人 医护人员".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One place and all that is true of it; times in minutes, money in yuan."""

    name: str
    kind: str
    doing: str
    booking: str
    extra: str
    helper: str
    opens: int
    closes: int
    rest_day: str
    price: int
    child_price: int
    child_age: int
    audience: str
    off: int
    days_before: int
    refund_days: int
    street: str
    number: int
    near: str
    extra_price: int
    parking_free: int
    parking_fee: int
    deposit: int
    minutes: int
    year: int
    people: int
    floor: int
    phone: str


def places(seed: int = 5, count: int = 300) -> list[Place]:
    """Invent the places: the same for every run."""
    rng = random.Random(seed)
    pairs = [(name, kind) for name in NAMES for kind in KINDS]
    rng.shuffle(pairs)
    return [_place(rng, name, kind) for name, kind in pairs[:count]]


def _place(rng: random.Random, name: str, kind: list[str]) -> Place:
    price = rng.choice(
        [10, 15, 18, 20, 25, 28, 30, 35, 38, 40, 45, 48, 50, 58, 60, 68, 80, 98, 120]
    )
    return Place(
        name=name + kind[0],
        kind=kind[0],
        doing=kind[1],
        booking=kind[2],
        extra=kind[3],
        helper=rng.choice(ASSISTANTS),
        opens=rng.choice([6, 7, 8, 9, 10]) * 60 + rng.choice([0, 0, 30]),
        closes=rng.choice([17, 18, 19, 20, 21, 22]) * 60 + rng.choice([0, 0, 30]),
        rest_day=rng.choice(REST_DAYS),
        price=price,
        child_price=price // 2,
        child_age=rng.choice([3, 5, 6, 7, 12, 14]),
        audience=rng.choice(AUDIENCES),
        off=rng.choice([5, 6, 7, 8, 9]),
        days_before=rng.randint(1, 7),
        refund_days=rng.choice([1, 2, 3, 5]),
        street=rng.choice(STREETS),
        number=rng.randint(1, 260),
        near=rng.choice(NEARS),
        extra_price=rng.choice([15, 20, 30, 40, 50, 66, 80, 88, 99, 150]),
        parking_free=rng.randint(1, 4),
        parking_fee=rng.choice([2, 3, 4, 5, 6]),
        deposit=rng.choice([20, 50, 100, 200, 300]),
        minutes=rng.choice([30, 45, 60, 90, 120]),
        year=rng.randint(1952, 2022),
        people=rng.choice([20, 30, 40, 60, 80, 100, 150, 200, 300]),
        floor=rng.randint(1, 6),
        phone="".join(str(rng.randint(0, 9)) for _ in range(8)),
    )


# Of each fact: questions, answers, and short questions that follow another one of the same place.
# {p} is the place ("" in a dialogue that has named it); the other slots are the facts.
FACTS: dict[str, tuple[list[str], list[str], list[str]]] = {
    "opens": (
        [
            "{p}[早上|][几点|什么时候|几点钟]开门[？|呀？|啊|]",
            "[请问|想问下|]{p}[上午|早上]几点开始[营业|上班]？",
            "{p}最早几点能[进去|进|去]",
            "我想一早去{p}，几点[就|能]开[门|]？",
            "{p}的开门时间[是几点|是什么时候|]？",
        ],
        [
            "{p}[早上|每天|]{opens}开门。",
            "{opens}开门，[您|你]可以[早点来|掐着点来]。",
            "[是|]{opens}[开始|]。",
            "开门时间是{opens}。",
        ],
        ["几点开门？", "那早上几点开？", "最早几点能进？"],
    ),
    "closes": (
        [
            "{p}[几点|晚上几点|什么时候][关门|打烊|结束|下班]？",
            "{p}[开|营业]到几点[？|呀|]",
            "[下班以后|晚上]去{p}，最晚几点[得|要]走？",
            "{p}晚上[最晚|]开到[什么时候|几点]",
            "请问{p}的关门时间[是|]？",
        ],
        [
            "{p}[开|营业]到{closes}。",
            "{closes}[关门|结束]，[别来太晚哦|请留好时间]。",
            "[晚上|]到{closes}。",
            "关门时间是{closes}。",
        ],
        ["那几点关门？", "开到几点？", "晚上几点结束？"],
    ),
    "rest": (
        [
            "{p}[周一|星期一|周几|哪天]休息[？|吗？]",
            "{p}有没有[闭馆日|休息日|不开的日子]？",
            "{p}[每周|一周]哪天不开[门|]？",
            "[我|]周几去{p}会扑空？",
        ],
        ["{rest}"],
        ["哪天休息？", "有休息日吗？", "周几不开门？"],
    ),
    "price": (
        [
            "{p}[多少钱|怎么收费|什么价格|贵不贵]？",
            "去{p}{doing}[要|得][多少钱|花多少]？",
            "{p}[一个人|一位|一次][多少|几块|多少钱]？",
            "[请问|]{p}的[价格|价钱|收费]是[多少|怎样的]？",
            "{p}大人[票|]多少钱",
        ],
        [
            "{p}[每人|一位|一次]{price}元。",
            "[成人|大人]{price}元[一位|]。",
            "价格是{price}元[一位|一次]。",
            "{price}元。",
        ],
        ["多少钱？", "那收费呢？", "一个人多少钱？"],
    ),
    "two": (
        [
            "我们{n}个大人去{p}[一共|总共|]要多少钱？",
            "{p}{n}个人[一共|总共]多少？",
            "[我和朋友|一家人]共{n}个大人去{p}，[花多少钱|要准备多少钱]？",
        ],
        ["{price}元一位，{n}位[一共|共]{total}元。", "{n}个人是{price}乘{n}，[一共|共]{total}元。"],
        ["那{n}个大人呢？", "{n}个人一共多少？", "我们{n}个人去要多少钱？"],
    ),
    "child": (
        [
            "{p}[小孩|孩子|儿童|小朋友][多少钱|要票吗|怎么收费]？",
            "带[孩子|娃]去{p}，孩子[收多少钱|要买票吗]",
            "{p}有没有儿童[价|票]？",
        ],
        [
            "{child_age}岁以下免费，{child_age}岁以上的孩子{child_price}元。",
            "孩子不到{child_age}岁不收钱，满{child_age}岁收{child_price}元。",
        ],
        ["小孩呢？", "孩子要钱吗？", "儿童怎么算？"],
    ),
    "child_is": (
        ["{p}，{n}岁的孩子[要钱吗|收费吗|要买票吗]？", "我家娃{n}岁，去{p}[免费吗|要不要票]？"],
        ["{child_is}"],
        ["{n}岁的孩子呢？", "我儿子{n}岁，要钱吗？", "女儿今年{n}岁，免费吗？"],
    ),
    "off": (
        [
            "{p}[有|有没有][折扣|优惠|打折][吗？|？|]",
            "{p}什么人能[打折|优惠]？",
            "去{p}怎么[才能|]便宜点？",
            "{audience}去{p}有优惠吗？",
        ],
        ["{audience}凭证件打{off}折。", "有的，{audience}[出示证件|带上证件]可以打{off}折。"],
        ["有优惠吗？", "能打折吗？", "{audience}有优惠没？"],
    ),
    "book": (
        [
            "{p}要[提前|]预约吗？",
            "{p}[要|得]提前几天{booking}？",
            "[想去|要去]{p}，{booking}[要提前多久|得多早]？",
            "{p}能不能当天{booking}？",
        ],
        [
            "[要|请]提前{days_before}天{booking}。",
            "{booking}需要提前{days_before}天。",
            "最好提前{days_before}天{booking}[，当天不一定有位置|]。",
        ],
        ["要预约吗？", "提前几天约？", "当天去行不行？"],
    ),
    "refund": (
        [
            "{p}[订好了|约好了]不去了[能退吗|怎么退]？",
            "{p}[退款|退钱|取消]有什么[规定|要求]？",
            "{p}最晚什么时候能[取消|退]？",
        ],
        [
            "提前{refund_days}天[以上|]取消可以全额退，晚了[不退|就不能退了]。",
            "可以退，要在{refund_days}天前取消。",
            "{refund_days}天前取消全额退款。",
        ],
        ["不去了能退吗？", "怎么取消？", "临时有事可以退吗？"],
    ),
    "refund_is": (
        [
            "{p}我约的是{n}天以后，[现在|]取消[能退钱吗|能退吗]？",
            "还有{n}天才去{p}，想[退|取消]，[来得及吗|行不行]？",
        ],
        ["{refund_is}"],
        ["还有{n}天，现在退来得及吗？", "离那天还有{n}天，能退吗？"],
    ),
    "where": (
        [
            "{p}在[哪|哪里|哪儿|什么地方]？",
            "{p}怎么[走|去]？",
            "{p}的地址[是|]？",
            "[请问|]去{p}导航[搜|到]哪里？",
            "{p}[离什么近|附近有什么]？",
        ],
        [
            "在{street}{number}号，{near}。",
            "{p}在{street}{number}号，就在{near}。",
            "地址是{street}{number}号，{near}。",
        ],
        ["在哪里？", "地址发我一下", "怎么走？"],
    ),
    "floor": (
        ["{p}在[几楼|第几层]？", "到了{street}，{p}[上几楼|在哪一层]？"],
        ["在{floor}楼。", "{p}在{floor}楼[，有电梯|]。"],
        ["在几楼？", "上几楼？"],
    ),
    "extra": (
        [
            "{p}的{extra}[多少钱|怎么收费|贵吗]？",
            "{p}有{extra}吗？[要多少钱？|]",
            "[我想|想]在{p}[试试|要个]{extra}，[什么价|多少钱]？",
        ],
        [
            "有{extra}，{extra_price}元[一次|]。",
            "{extra}[是|要]{extra_price}元。",
            "{extra}另收{extra_price}元。",
        ],
        ["{extra}呢？", "{extra}多少钱？", "有{extra}吗？"],
    ),
    "park": (
        [
            "{p}[能停车|可以停车|好停车]吗？",
            "开车去{p}停哪？[收费吗？|]",
            "{p}停车[怎么收费|多少钱|要钱吗]？",
            "{p}有没有停车场？",
        ],
        [
            "有停车场，前{parking_free}小时免费，之后每小时{parking_fee}元。",
            "可以停，{parking_free}小时内免费，超过每小时{parking_fee}元。",
        ],
        ["能停车吗？", "停车收费吗？", "开车去方便吗？"],
    ),
    "park_is": (
        ["在{p}停{n}个小时[车|]要多少钱？", "去{p}[大概|]停{n}小时，停车费多少？"],
        ["前{parking_free}小时免费，{park_is}"],
        ["停{n}小时多少钱？", "{n}个小时停车费多少？"],
    ),
    "deposit": (
        ["{p}[要|收|交]押金吗？", "{p}押金[多少|是多少|要多少钱]？", "去{p}{doing}要不要交押金？"],
        [
            "[要交|收]{deposit}元押金，[走的时候退|结束时退还|用完退回]。",
            "押金{deposit}元，[之后|]全额退。",
        ],
        ["要押金吗？", "押金多少？"],
    ),
    "minutes": (
        [
            "{p}[一次|一节|一场]多[久|长时间]？",
            "去{p}{doing}[大概|一般]要多久？",
            "{p}每次[几分钟|多长时间]？",
        ],
        ["[一次|每次|大约]{minutes}分钟。", "[一般|]{minutes}分钟[左右|]。"],
        ["要多久？", "一次多长时间？"],
    ),
    "year": (
        ["{p}[开了多久|是哪年开的|什么时候建的]？", "{p}有[历史|年头]了吧？"],
        ["{p}[是|]{year}年[开的|建成的]。", "{year}年就[有了|开门了]。"],
        ["是哪年开的？", "开了很久吗？"],
    ),
    "people": (
        [
            "{p}[最多|]能[容纳|坐|进]多少人？",
            "{p}[大不大|地方够大吗|人多吗]？",
            "我们单位想去{p}，[最多去几个人|装得下多少人]？",
        ],
        ["最多[同时|]{people}人。", "[可以|能][容纳|接待]{people}人。"],
        ["能进多少人？", "地方大吗？"],
    ),
    "phone": (
        ["{p}[的|]电话[是多少|多少|]？", "怎么[联系|打电话给]{p}？", "给我{p}的[联系方式|号码]"],
        ["电话是{phone}。", "[请|可以]打{phone}。"],
        ["电话多少？", "怎么联系？"],
    ),
    "open_at": (
        [
            "[今天|]{at_spoken}去{p}[还开着吗|来得及吗|还能进吗]？",
            "{p}{at_spoken}[开着吗|有人吗|能去吗]？",
            "我{at_spoken}[到|才到]{p}，[行不行|可以吗|晚不晚]？",
        ],
        ["{open_at}"],
        ["{at_spoken}去行吗？", "那{at_spoken}呢？", "我{at_spoken}才有空，来得及吗？"],
    ),
    "day_is": (
        ["{p}{day}[开吗|开门吗|能去吗]？", "{day}去{p}[可以吗|行不行|有人吗]？"],
        ["{day_is}"],
        ["{day}呢？", "那{day}开吗？", "{day}去行不行？"],
    ),
}
DAYS = "周一 周二 周三 周四 周五 周六 周日".split()


def _slots(rng: random.Random, place: Place, named: bool) -> dict[str, object]:
    """All facts of a place, and the conclusions that questions with a number of their own need."""
    n = rng.randint(2, 6)
    at = rng.choice(range(6 * 60, 23 * 60, 30))
    day = rng.choice(DAYS)
    hours = f"{clock(place.opens)}到{clock(place.closes)}"
    if at < place.opens:
        open_at = f"还没开门，要等到{clock(place.opens)}。"
    elif at < place.closes:
        open_at = say(
            rng, f"[可以的|开着|来得及]，[营业时间是{hours}|我们开到{clock(place.closes)}]。"
        )
    else:
        open_at = f"[已经关门了|来不及了|太晚了]，我们{clock(place.closes)}关门。"
    rest = f"{place.rest_day}休息[，其他日子都开|]。"
    if place.rest_day == "没有":
        rest = "[没有休息日|不休息]，[每天|天天]都开[门|]。"
    closed = day == place.rest_day
    day_is = f"[不开|不行]，{day}休息。" if closed else f"[开的|可以的|开门]，{hours}[都在|]。"
    paid = max(0, n - place.parking_free)
    park_is = f"还有{paid}小时收费，共{paid * place.parking_fee}元。" if paid else "停车不要钱。"
    ok = n >= place.refund_days
    refund_is = (
        "[可以|能退|来得及]，{d}天前取消全额退。" if ok else "[不行了|退不了]，要提前{d}天取消。"
    )
    age_ok = n < place.child_age
    child_is = "不要钱，{a}岁以下免费。" if age_ok else "要的，满{a}岁收{c}元。"
    a, c, d = place.child_age, place.child_price, place.refund_days
    facts: dict[str, object] = {name: getattr(place, name) for name in Place.__slots__}
    return facts | {
        "p": place.name if named else "",
        "opens": clock(place.opens),
        "closes": clock(place.closes),
        "n": rng.choice([str(n), "两" if n == 2 else chinese_number(n)]),
        "total": n * place.price,
        "at_spoken": spoken_clock(at),
        "day": day,
        "rest": say(rng, rest),
        "open_at": say(rng, open_at),
        "day_is": say(rng, day_is),
        "park_is": park_is,
        "refund_is": say(rng, refund_is).format(d=d),
        "child_is": child_is.format(a=a, c=c),
    }


def warmly(rng: random.Random, answer: str) -> str:
    """An answer with a greeting before it or a kind word after it, now and then."""
    before = rng.choice(_BEFORE) if rng.random() < 0.15 else ""
    after = rng.choice(_AFTER) if rng.random() < 0.15 else ""
    return before + answer + after


_BEFORE = ["您好，", "好的，", "您好，我来说明一下：", "可以告诉您：", "是这样的，"]
_AFTER = [
    "请您留意。",
    "欢迎您来。",
    "需要的话我帮您登记。",
    "您看可以吗？",
    "有别的问题请告诉我。",
]
_PLACES = places()
_OPENINGS = ["", "", "", "你好，", "请问", "您好，", "问一下，", "打扰一下，", "在吗？"]
_CLOSINGS = [
    ("谢谢", "[不客气|不用谢]，[欢迎您来|期待您的到来|祝您愉快]。"),
    ("好的，知道了", "好的，[有问题再问我|需要时再找我]。"),
    ("[好，谢谢你|多谢啦]", "不客气，[路上小心|祝您一天顺利]。"),
    ("行，那我去看看", "欢迎[光临|您来]，[到时见|回头见]。"),
]


def single(rng: random.Random) -> Turns:
    """One question that names its place."""
    place = rng.choice(_PLACES)
    questions, answers, _ = FACTS[rng.choice(list(FACTS))]
    slots = _slots(rng, place, named=True)
    question = say(rng, rng.choice(_OPENINGS)) + one_of(rng, questions, **slots)
    return [(question, one_of(rng, answers, **slots))]


def dialogue(rng: random.Random) -> Turns:
    """Several questions about one place: the first names it, the others lean on what was said."""
    place = rng.choice(_PLACES)
    names = rng.sample(list(FACTS), rng.randint(2, 5))
    turns: Turns = []
    for number, name in enumerate(names):
        questions, answers, following = FACTS[name]
        slots = _slots(rng, place, named=number == 0)
        question = one_of(rng, questions if number == 0 else following, **slots)
        turns.append((question, warmly(rng, one_of(rng, answers, **slots))))
    if rng.random() < 0.3:
        said, answered = rng.choice(_CLOSINGS)
        turns.append((say(rng, said), say(rng, answered)))
    return turns


def at_the_desk(rng: random.Random) -> tuple[str, Turns]:
    """A system message names the place and its helper; no question names it again."""
    place = rng.choice(_PLACES)
    system = one_of(
        rng,
        ["你是{name}的助手{helper}，请回答客人的问题。", "你叫{helper}，在{name}的前台工作。",
         "你是{name}的{helper}，回答要简短、准确。"],
        name=place.name,
        helper=place.helper,
    )  # fmt: skip
    turns: Turns = []
    for name in rng.sample(list(FACTS), rng.randint(1, 4)):
        questions, answers, following = FACTS[name]
        slots = _slots(rng, place, named=False)
        question = one_of(rng, following if rng.random() < 0.6 else questions, **slots)
        turns.append((question, warmly(rng, one_of(rng, answers, **slots))))
    return system, turns


def description(rng: random.Random) -> str:
    """A paragraph about one place, in which some of its facts stand one after another."""
    place = rng.choice(_PLACES)
    names = [
        n
        for n in rng.sample(list(FACTS), 9)
        if not n.endswith("_is") and n not in ("two", "open_at")
    ]
    slots = _slots(rng, place, named=False)
    begin = one_of(
        rng, ["{name}[是一家{kind}|在{street}]。", "说说{name}。", "介绍一下{name}："], **slots
    )
    return begin + "".join(one_of(rng, FACTS[name][1], **slots) for name in names)


def from_notice(rng: random.Random) -> Turns:
    """Facts of a place that nobody has heard of, given as a notice; then questions about it."""
    place = _place(rng, rng.choice(NAMES) + rng.choice("一二三甲乙丙新老"), rng.choice(KINDS))
    names = rng.sample([n for n in FACTS if n not in ("two", "year")], 4)
    told = [n for n in names if not n.endswith("_is") and n != "open_at"] or ["price"]
    slots = _slots(rng, place, named=False)
    lines = [say(rng, FACTS[name][1][0], **slots) for name in told]  # the plainest form
    notice = say(rng, "[通知|介绍|材料|说明]：") + place.name + "。" + "".join(lines)
    asked = rng.sample(told, min(len(told), rng.randint(1, 2)))
    turns: Turns = []
    for number, name in enumerate(asked):
        question = one_of(rng, FACTS[name][2], **slots)
        lead = (
            say(rng, "[根据下面的内容回答问题|读一读，然后回答|看材料答题]。\n")
            if number == 0
            else ""
        )
        text = f"{lead}{notice}\n问题：{question}" if number == 0 else question
        turns.append((text, lines[told.index(name)]))
    return turns
