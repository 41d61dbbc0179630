# ruff: noqa: E501
"""Invented offices, schools and clubs with rules of their own, each rule asked in many wordings.

What may be done, until when, how often, for how much, at whose cost, where, with which papers, and
what to do when something goes wrong: a hundred institutions, each with rules that never change, so
that a model learns that many wordings are one question. None of them sells goods.
"""

import random
from dataclasses import dataclass

from everyday.grammar import Turns, one_of, say, table

# kind | what can be done there (verbs) ... | troubles, after a colon
KINDS = table("""
图书馆 | 续借图书 补办借书证 预约研讨室 打印资料 捐赠旧书 参加读书会 : 书弄丢了 书页撕坏了 借书证忘带了
大学教务处 | 补考 重修 转专业 缓考 查试卷 打印成绩单 免修英语 : 选错课了 考试迟到了 学生证丢了
小学 | 请病假 转班 领校服 订午餐 参加合唱团 借用操场 : 孩子发烧了 校服小了 作业本忘带了
驾校 | 约考 换教练 补学时 延长学车期限 领驾照 请假 : 科目二没过 体检表丢了 教练迟到了
健身房 | 转卡 停卡 续费 换私教 租柜子 带朋友体验 : 手环丢了 柜子打不开 器材坏了
社区医院 | 打疫苗 做体检 取化验单 换药 开病假条 测血压 : 病历丢了 过号了 吃药过敏了
中心医院 | 改约门诊 复印病历 做核磁 申请住院 报销药费 探望病人 : 挂错科了 发票丢了 检查没来
公寓 | 续租 换房间 养猫 装空调 提前搬走 配钥匙 : 水管漏了 灯泡坏了 钥匙忘带了
物业 | 办门禁卡 租车位 装修房子 缴物业费 开放行条 借推车 : 电梯停了 门禁坏了 楼上漏水了
银行网点 | 挂失存折 换新卡 兑换零钱 开存款证明 修改密码 租保险箱 : 卡被机器吞了 密码忘了 存错钱了
火车站 | 改签车票 补车票 寄存行李 带宠物乘车 团体购票 进站接人 : 误车了 东西落在车上了 身份证没带
机场 | 换登机牌 托运乐器 升舱 带婴儿车 申请轮椅 寄存行李 : 航班晚点了 箱子摔坏了 登机牌丢了
公交公司 | 办老年卡 补公交卡 包车 查路线 给卡充值 认领失物 : 坐过站了 刷了两次卡 伞忘在车上了
供水公司 | 换水表 过户水表 报装水管 缴水费 查水质 申请停水 : 水压太小了 水变黄了 水表不走了
燃气公司 | 改燃气管 换灶具软管 安检 过户燃气 预存气费 关阀 : 闻到煤气味了 打不着火了 卡插不进去了
电信营业厅 | 换套餐 补手机卡 装宽带 移机宽带 停机保号 携号转网 : 没信号了 话费扣多了 网速太慢了
派出所 | 办身份证 改名字 迁户口 开居住证明 办临时牌照 采指纹 : 身份证丢了 钱包被偷了 孩子走丢了
税务大厅 | 补税 开完税证明 更正申报 领发票本 注销登记 申请减免 : 申报错了 忘记申报了 密码锁了
法律援助中心 | 申请律师 咨询劳动法 写起诉状 调解纠纷 公证遗嘱 查案件进度 : 被拖欠工资了 合同丢了 对方不来了
幼儿园 | 插班 延迟接孩子 请假 订早餐 换班级 参观教室 : 孩子磕伤了 被子忘带了 接送卡丢了
琴行 | 租钢琴 调音 补课 换老师 考级报名 借琴房 : 琴弦断了 课忘上了 谱子丢了
画室 | 补课 寄放画具 换时间上课 参加画展 试听 延长课程 : 颜料洒了 画框裂了 迟到半小时了
游泳馆 | 办深水证 停卡 租泳镜 包泳道 带小孩下水 转让次卡 : 泳帽忘带了 手牌丢了 腿抽筋了
滑雪场 | 租雪板 请教练 寄存雪具 延长滑雪时间 改日期 坐缆车 : 雪板断了 摔伤了 雪太大不开了
博物馆 | 请讲解员 借轮椅 带三脚架 团体参观 寄存背包 租讲解机 : 讲解机没电了 孩子走散了 约了没去
动物园 | 喂长颈鹿 坐观光车 过夜露营 办年卡 推婴儿车进园 给动物拍照 : 被猴子抓了 年卡丢了 走散了
剧院 | 换座位 带孩子看戏 申请学生票 参观后台 改场次 借望远镜 : 迟到了 票弄丢了 演出取消了
电影院 | 包场 改签电影票 办会员卡 带外卖进场 借毛毯 领三维眼镜 : 眼镜坏了 空调太冷了 看错场次了
酒店 | 加床 延迟离店 开早餐券 带狗入住 寄存箱子 洗衣服 : 房卡丢了 热水没了 隔壁太吵了
民宿 | 借厨房 接站 提前入住 烧烤 带宠物 加一个人 : 门锁打不开 被子不够 网断了
养老院 | 外出 探望老人 换房间 请护工 试住 点餐 : 老人摔倒了 药吃完了 助听器坏了
宠物医院 | 打狂犬疫苗 寄养猫咪 做绝育 洗澡 上门接送 拍片子 : 狗吐了 疫苗本丢了 猫不吃饭了
照相馆 | 加急取照片 补拍 借礼服 要底片 修照片 改尺寸 : 照片闭眼了 照片拍糊了 忘记取了
洗衣房 | 加急洗 上门取衣服 补扣子 熨西装 洗窗帘 办洗衣卡 : 衣服染色了 扣子掉了 小票丢了
租车行 | 异地还车 延长租期 换车型 加司机 装儿童座椅 提前还车 : 车刮了 轮胎爆了 钥匙锁车里了
停车场 | 办月卡 换车牌 过夜停车 申请固定车位 充电 开收据 : 车牌识别错了 找不到车了 车被挡住了
加油站 | 开发票 洗车 给轮胎打气 办油卡 换机油 买玻璃水 : 加错油了 油卡丢了 车抛锚了
搬家公司 | 加一辆车 改搬家时间 拆装家具 打包瓷器 搬钢琴 寄放家具 : 柜子磕坏了 东西太多装不下 师傅迟到了
家政公司 | 换保姆 加时 擦玻璃 洗油烟机 做月嫂 签长期合同 : 花瓶打碎了 阿姨没来 没擦干净
月子中心 | 参观房间 陪住 延长天数 点餐 请催乳师 改预产期 : 宝宝发烧了 提前生了 不合口味
保险公司 | 退保 理赔 改受益人 补保单 续保 换联系电话 : 车撞了 保单丢了 忘记交保费了
公积金中心 | 提取公积金 转移账户 贷款买房 补缴 冲还贷 查余额 : 密码忘了 单位没交 贷款逾期了
婚姻登记处 | 补结婚证 约吉日 请人颁证 改户口婚姻状况 办离婚 拍登记照 : 证丢了 名字写错了 约了没去
消防培训中心 | 考消防证 补考 参观消防站 借灭火器 换培训班 领证书 : 准考证丢了 考试没过 迟到了
足球场 | 订夜场 租球衣 请裁判 办比赛 改时间 包场一天 : 下雨了 球飞出去了 灯灭了
羽毛球馆 | 穿线 租球拍 订长期场 请陪练 换场地 存球包 : 拍线断了 崴脚了 订错场了
攀岩馆 | 租岩鞋 考保护员证 带新手 办次卡 过生日 请教练 : 手磨破了 鞋子太紧 次卡过期了
瑜伽馆 | 约课 取消约课 延期 上私教 租垫子 带孩子上课 : 约了课没去 扭到腰了 垫子忘带了
自习室 | 订通宵座 暂时离座 换座位 打印 租柜子 转让时长 : 有人大声说话 插座没电了 柜子钥匙丢了
共享单车公司 | 退押金 停在校园外 骑出城 办月卡 报坏车 临时锁车 : 锁打不开 忘记锁车了 扣错钱了
""")
NAMES = "临川 青石 望海 松山 芳园 大通 永和 星辰 桃源 白云".split()
EACH = 2  # institutions of a kind
PAPERS = "身份证 户口本 学生证 两张照片 预约码 登记表 工作证 缴费单 合同原件 驾驶证".split()
PLACES = "一楼大厅 二楼三号窗口 三楼办公室 门口服务台 五号柜台 东门值班室 地下一层 手机上".split()
PAYERS = "您自己 我们 单位 家长 申请人 保险公司 先提出的一方 双方各一半".split()
PERIODS = "每年 每月 每学期 每人 每周".split()
HELP = (
    "[打值班电话，|马上告诉工作人员，]{minutes}分钟内有人来。 去{place}登记，{days}天内处理好。 "
    "带{paper}去{place}补办，{fee}元。 不用着急，{hours}小时内给您答复。 请先拍照，再到{place}说明。"
).split()

# Of each intent: questions and answers. {v} is what is done.
INTENTS: dict[str, tuple[list[str], list[str]]] = {
    "until": (
        [
            "{v}[有没有|有]期限[吗|]", "[几天内|多久内|多少天之内][可以|能|要]{v}",
            "{v}[最晚|最迟][什么时候|到哪天|是第几天]", "过了[三天|一个星期|半个月|二十天]还能{v}吗",
            "[上周|前天|上个月]的，现在{v}[来得及吗|晚不晚|还行吗]", "{v}的[期限|时限|时间限制]是[几天|多久|多少]",
            "想{v}，[还有几天|最晚哪天|要多快]", "{v}要[趁早|在几天里]办吗", "多少天以后就不能{v}了",
            "[超过|过了][期限|时间]还[给|让]{v}吗",
        ],
        ["{v}要在{days}天内[办|]。", "{days}天内可以{v}。", "{v}的期限是{days}天。"],
    ),
    "fee": (
        [
            "{v}[多少钱|几块钱|要多少钱]", "{v}[收费吗|要钱吗|要不要钱|免费吗|花钱不]",
            "想{v}，[得花多少|要付多少|什么价|贵不贵]", "{v}的[费用|价格|价钱][是多少|怎么算|]",
            "[为什么|怎么]{v}还要[交钱|收钱|付费]", "{v}一次[几块|多少|要几十块]", "{v}[怎么收费|收多少|按什么收]",
            "[二十|五十|一百]块够{v}吗", "[听说|都说]{v}要收钱，[是真的吗|收多少]",
        ],
        ["{v}{fee}元[一次|]。", "{v}收{fee}元。", "{v}要{fee}元，[现金、手机都可以|当场交]。"],
    ),
    "free": (
        [
            "{v}[要钱吗|收费吗|多少钱|几块]", "{v}[收不收钱|要不要付费|免费不]", "想{v}，[花钱吗|得付多少]",
            "{v}的[费用|价格]是多少", "{v}要[另外|额外]交钱吗", "[多少钱|什么价]可以{v}",
        ],
        ["{v}免费。", "{v}不收钱。", "{v}不要钱，[直接来就行|放心]。"],
    ),
    "payer": (
        [
            "{v}的[钱|费用|花费][谁出|算谁的|谁来付|谁承担]", "{v}[要我掏钱吗|是你们出钱吗|钱归谁]",
            "{v}，[费用|钱]由谁[付|负担|出]", "[我|自己]{v}[能报销吗|要自己花钱吗]", "{v}[花的钱|的开销]怎么算",
            "是[我|你们]付{v}的[钱|费用]吗",
        ],
        ["{v}的费用{payer}出。", "{v}由{payer}付钱。", "费用算{payer}的。"],
    ),
    "often": (
        [
            "{v}[能几次|可以几回|最多几次|几次为限]", "已经{v}过一次了，[还能再来一次吗|还可以吗]",
            "{v}有[次数|]限制吗", "能{v}[两次|三次|好几次]吗", "{v}[次数|一年几次|一共几回][有限吗|]",
            "还想再{v}一次，[行吗|给不给]", "可以[一直|反复]{v}吗", "{v}用过一回，[还剩几回|再用行不行]",
        ],
        ["{v}{period}最多{times}次。", "{period}可以{v}{times}次。", "最多{times}次，{period}。"],
    ),
    "takes": (
        [
            "{v}[要几天|多久|要多长时间][能好|办好|]", "[昨天|上周|前几天]{v}的，[怎么还没好|什么时候有结果|还要等几天]",
            "{v}[最快|一般|大概][几天|多久]", "{v}[得|要]等[多久|几天|到什么时候]", "[等|盼]{v}好几天了，[还没消息|怎么回事]",
            "{v}的[时间|办理时间|速度]", "[交了材料|申请以后]，{v}[几天能好|多久办完]", "{v}[快不快|慢不慢]",
        ],
        ["{v}要{days}个工作日。", "{v}[大约|]{hours}小时[办好|]。", "{days}个工作日[办好|能好]。"],
    ),
    "where": (
        [
            "在[哪里|哪儿|什么地方]{v}", "{v}去[哪里|哪儿|几楼|哪个窗口]", "{v}的[地方|窗口|位置]在哪", "[想|要]{v}，[找谁|去哪|到哪办]",
            "[哪里|哪儿]可以{v}", "{v}[往哪走|是在几楼|要到哪里]", "[请问|问一下]{v}在哪[|边]",
        ],
        ["{v}[请|]到{place}。", "在{place}{v}。", "去{place}就能{v}。"],
    ),
    "papers": (
        [
            "{v}要[带什么|什么材料|哪些证件|准备什么]", "{v}[凭什么|用什么证件|需要身份证吗]", "去{v}[带哪些东西|要拿什么]",
            "{v}的[材料|手续|证件]", "[只带手机|没带证件|空手去]能{v}吗", "替[家人|朋友|孩子]{v}要带什么",
        ],
        ["{v}要带{paper}和{paper2}。", "请带{paper}、{paper2}。", "带上{paper}和{paper2}就能{v}。"],
    ),
    "no": (
        [
            "[能|可以|能不能|可不可以]{v}[吗|]", "想{v}，[行吗|可以吗|行不行|能办吗]", "[支持|允许|让]{v}吗", "有没有办法{v}",
            "[我|孩子|朋友]要{v}，[给办吗|能通融吗]", "为什么不[能|让]{v}", "[现在|今天|以后]还能{v}吗", "{v}[行得通吗|办得了吗]",
        ],
        ["抱歉，[现在|这里|]不能{v}。", "不可以{v}[，请您谅解|]。", "{v}办不了[，对不起|]。"],
    ),
    "way": (
        [
            "[怎么|怎样|如何]{v}", "想{v}，[怎么弄|咋办|该怎么做]", "{v}的[办法|步骤|流程|方法]", "[我要|帮我|我想]{v}", "{v}[怎么操作|在哪点|从哪里开始]",
            "[教教我|告诉我]怎么{v}", "第一次{v}，[不知道怎么办|要怎么走流程]",
        ],
        ["先到{place}登记，再{v}。", "带{paper}到{place}[就能{v}|办理]。", "提前{days}天预约，然后{v}。"],
    ),
}  # fmt: skip
TROUBLE = [
    "{t}[怎么办|咋办|怎么处理|该找谁]", "{t}，[你们管吗|谁负责|有人管吗]", "{t}", "要是{t}[呢|怎么办]",
    "{t}[，急|，怎么弄|，帮帮我]", "[哎呀|糟糕|不好了]，{t}", "如果{t}[，怎么解决|，找谁]",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of an institution: what may be asked, and what the answers are made of."""

    questions: list[str]
    answers: list[str]
    slots: dict[str, str]


@dataclass(frozen=True, slots=True)
class Office:
    """An institution with its rules."""

    name: str
    rules: list[Rule]


def _slots(rng: random.Random) -> dict[str, str]:
    paper, other = rng.sample(PAPERS, 2)
    return {
        "days": str(rng.choice([2, 3, 5, 6, 7, 8, 10, 12, 14, 15, 20, 25, 30, 45, 60])),
        "hours": str(rng.choice([1, 2, 3, 4, 6, 8, 12, 24, 36, 48, 72])),
        "minutes": rng.choice(["5", "10", "15", "20", "30"]),
        "fee": str(rng.choice([2, 3, 5, 6, 8, 9, 10, 12, 15, 18, 20, 25, 30, 45, 60, 88, 120])),
        "times": str(rng.randint(1, 5)),
        "paper": paper,
        "paper2": other,
        "place": rng.choice(PLACES),
        "payer": rng.choice(PAYERS),
        "period": rng.choice(PERIODS),
    }


def offices(seed: int = 17) -> list[Office]:
    """Invent the institutions: the same for every run."""
    rng = random.Random(seed)
    found = []
    for kind, listed in KINDS:
        verbs, troubles = (part.split() for part in listed.split(" : "))
        for name in rng.sample(NAMES, EACH):
            rules = []
            for verb in verbs:
                names = rng.sample(list(INTENTS), 4)
                if "no" in names:
                    names = ["no"]  # what cannot be done has no price
                elif "free" in names:
                    names = [n for n in names if n not in ("fee", "payer")]
                for intent in names:
                    questions, answers = INTENTS[intent]
                    rules.append(Rule(questions, [rng.choice(answers)], {"v": verb} | _slots(rng)))
            for trouble in troubles:
                answer = say(rng, rng.choice(HELP), **_slots(rng))
                rules.append(Rule(TROUBLE, [answer], {"t": trouble} | _slots(rng)))
            found.append(Office(name + kind, rules))
    return found


_OFFICES = offices()
_CALLS = ["", "", "", "请问", "你好，", "问一下，", "您好，", "麻烦问下，"]


def _asked(rng: random.Random, rule: Rule) -> str:
    question = one_of(rng, rule.questions, **rule.slots)
    return question + rng.choice(["", "", "？"])


def single(rng: random.Random) -> Turns:
    """One question with the institution's name before it."""
    office = rng.choice(_OFFICES)
    rule = rng.choice(office.rules)
    lead = rng.choice(["{o}", "{o}，", "在{o}，", "{o}的问题：", "我在{o}，", "想问{o}，"])
    question = rng.choice(_CALLS) + lead.format(o=office.name) + _asked(rng, rule)
    return [(question, one_of(rng, rule.answers, **rule.slots))]


def at_the_desk(rng: random.Random) -> tuple[str, Turns]:
    """A system message names the institution; the questions do not."""
    office = rng.choice(_OFFICES)
    system = say(
        rng,
        "[你是{o}的工作人员|这里是{o}|你在{o}值班][，请回答来访者|，回答要简短|]。",
        o=office.name,
    )
    rules = rng.sample(office.rules, rng.randint(1, 5))
    return system, [(_asked(rng, r), one_of(rng, r.answers, **r.slots)) for r in rules]


def from_rules(rng: random.Random) -> Turns:
    """Rules of an institution nobody has heard of, then questions in other words than the rules'."""
    office = rng.choice(_OFFICES)
    rules = []
    for rule in rng.sample(office.rules, rng.randint(3, 5)):
        slots = _slots(rng) | {key: rule.slots[key] for key in ("v", "t") if key in rule.slots}
        rules.append((rule, one_of(rng, rule.answers, **slots)))
    lead = say(rng, "[规定|须知|说明]：") + "".join(answer for _, answer in rules)
    turns: Turns = []
    for rule, answer in rng.sample(rules, rng.randint(1, 3)):
        question = _asked(rng, rule)
        turns.append((question if turns else f"{lead}\n问：{question}", answer))
    return turns
