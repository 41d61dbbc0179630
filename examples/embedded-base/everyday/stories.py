# ruff: noqa: E501
"""Short stories from a small grammar of heroes, places, troubles and helpers; asked for and told.

A story has a beginning, a trouble, somebody who helps and an end; questions about it have their
answers in it.
"""

import random

from everyday.grammar import Turns, one_of

PEOPLE = "老爷爷 小女孩 小男孩 渔夫 农夫 小木匠 邮递员 面包师".split()
HEROES = (
    "小兔 小熊 小猫 小狗 小鸭 小猴 小象 小鹿 刺猬 松鼠 小马 小羊 狐狸 乌龟 小鸟 小青蛙".split()
    + PEOPLE
)
TRAITS = "勇敢 善良 贪玩 胆小 爱笑 好奇 勤快 细心 害羞 聪明 性急 安静".split()
PLACES = "森林里 小河边 山脚下 村子里 海边 城里 果园里 草地上 大树下 小岛上 湖边 老街上".split()
LOST = "帽子 钥匙 红气球 小铃铛 书包 雨伞 风筝 手套 画笔 饼干盒 围巾 小船".split()
FOUND_AT = "树洞里 桥下 草丛里 石头后面 屋顶上 井边 树枝上 床底下 箱子里 河滩上".split()
SEASONS = "春天 夏天 秋天 冬天 一天早上 一个下午 一个雨天 一个晴天 下雪的晚上".split()
LESSONS = "做事要细心 朋友要互相帮助 别怕困难 要说真话 做事不能着急 分享让人快乐 努力就会有收获 要听别人的意见".split()
GIFTS = "一篮苹果 一朵花 一块蛋糕 一本书 一封信 一罐蜂蜜 一条围巾 一袋花生".split()
SKILLS = "游泳 唱歌 画画 爬树 做饭 写字 骑车 跳舞 种花 讲故事".split()


def story_text(rng: random.Random) -> tuple[str, dict[str, str]]:
    """A story and what a reader can be asked about it."""
    hero, helper = rng.sample(HEROES, 2)
    slots = {
        "h": hero,
        "u": "位" if hero in PEOPLE else "只",
        "o": "他" if hero in PEOPLE else "它",
        "k": helper,
        "t": rng.choice(TRAITS),
        "p": rng.choice(PLACES),
        "l": rng.choice(LOST),
        "f": rng.choice(FOUND_AT),
        "s": rng.choice(SEASONS),
        "m": rng.choice(LESSONS),
        "g": rng.choice(GIFTS),
        "x": rng.choice(SKILLS),
    }
    begin = one_of(rng, ["[从前|很久以前]，{p}住着一{u}{t}的{h}。",
                         "{s}，{t}的{h}[来到|走到]{p}。", "{p}有一{u}{t}的{h}，[大家都喜欢{o}|每天都很忙]。"], **slots)  # fmt: skip
    if rng.random() < 0.55:
        middle = one_of(rng, ["[有一天|这天]，{h}[发现|看到]自己的{l}不见了，[急得团团转|难过得哭了|到处找也找不到]。", "{h}[不小心|玩着玩着]把{l}弄丢了，[心里很着急|坐在地上发呆]。"], **slots)  # fmt: skip
        help_ = one_of(rng, ["{k}[走过来|听说了]，说：“[别急|别哭]，我[帮你找|和你一起找]。”[他们|两个朋友]找了[很久|整整一个下午]，[终于|最后]在{f}找到了{l}。"], **slots)  # fmt: skip
        end = one_of(
            rng,
            ["{h}[高兴极了|很感谢{k}]，送给{k}{g}。", "{h}笑了，[从此|以后]和{k}成了好朋友。"],
            **slots,
        )
        asked = {
            "丢了什么？": slots["l"],
            "谁来帮忙？": helper,
            "在哪里找到的？": slots["f"],
            "故事里的主角是谁？": hero,
        }
    else:
        middle = one_of(
            rng,
            [
                "{h}[很想|一直想]学{x}，[可是总学不会|可是大家都说太难了]。",
                "{h}不会{x}，[常常被笑话|心里很羡慕别人]。",
            ],
            **slots,
        )
        help_ = one_of(rng, ["{k}[对{o}说|告诉{o}]：“[每天练一点，一定能学会|慢慢来，我教你]。”{h}[每天|天天]练习，[从不偷懒|摔倒了又爬起来]。"], **slots)  # fmt: skip
        end = one_of(
            rng,
            [
                "[过了一个月|到了第二年]，{h}[终于|真的]学会了{x}，[大家都为{o}鼓掌|{o}高兴得跳了起来]。"
            ],
            **slots,
        )
        asked = {"想学什么？": slots["x"], "谁教它？": helper, "故事里的主角是谁？": hero}
    moral = one_of(
        rng, ["", "这个故事告诉我们，{m}。", "[从那以后|后来]，{h}明白了：{m}。"], **slots
    )
    return begin + middle + help_ + end + moral, asked


def story(rng: random.Random) -> Turns:
    text, asked = story_text(rng)
    if rng.random() < 0.5:
        hero = asked["故事里的主角是谁？"]
        q = one_of(rng, ["[给我|]讲个[小|]故事", "[讲|写|编]一个关于{h}的[小|]故事", "我想听{h}的故事", "[睡前|]来个{h}的故事吧", "写一个短故事，主角是{h}"], h=hero)  # fmt: skip
        turns = [(q, text)]
        if rng.random() < 0.4:
            question, answer = rng.choice(list(asked.items()))
            turns.append((question, answer + "。"))
        return turns
    names = rng.sample(list(asked), rng.randint(1, 2))
    lead = one_of(rng, ["[读故事，回答问题|看故事答题|阅读下面的故事]：\n", "", "故事："])
    turns = [(f"{lead}{text}\n{names[0]}", asked[names[0]] + "。")]
    turns += [(name, asked[name] + "。") for name in names[1:]]
    return turns
