# ruff: noqa: E501
"""Common knowledge from small tables: countries, animals, words, things and what they are for.

Each row is asked in several directions (the capital of a country, the country of a capital) and in
several forms; definitions of everyday words are written by hand.
"""

import random

from everyday.grammar import Turns, one_of, table

COUNTRIES = table("""
中国 北京 亚洲 人民币
日本 东京 亚洲 日元
韩国 首尔 亚洲 韩元
印度 新德里 亚洲 卢比
泰国 曼谷 亚洲 泰铢
越南 河内 亚洲 越南盾
蒙古国 乌兰巴托 亚洲 图格里克
新加坡 新加坡 亚洲 新加坡元
英国 伦敦 欧洲 英镑
法国 巴黎 欧洲 欧元
德国 柏林 欧洲 欧元
意大利 罗马 欧洲 欧元
西班牙 马德里 欧洲 欧元
葡萄牙 里斯本 欧洲 欧元
希腊 雅典 欧洲 欧元
俄罗斯 莫斯科 欧洲 卢布
瑞典 斯德哥尔摩 欧洲 克朗
挪威 奥斯陆 欧洲 克朗
瑞士 伯尔尼 欧洲 瑞士法郎
奥地利 维也纳 欧洲 欧元
荷兰 阿姆斯特丹 欧洲 欧元
波兰 华沙 欧洲 兹罗提
埃及 开罗 非洲 埃及镑
肯尼亚 内罗毕 非洲 先令
美国 华盛顿 北美洲 美元
加拿大 渥太华 北美洲 加元
墨西哥 墨西哥城 北美洲 比索
古巴 哈瓦那 北美洲 比索
巴西 巴西利亚 南美洲 雷亚尔
阿根廷 布宜诺斯艾利斯 南美洲 比索
智利 圣地亚哥 南美洲 比索
秘鲁 利马 南美洲 索尔
澳大利亚 堪培拉 大洋洲 澳元
新西兰 惠灵顿 大洋洲 新西兰元
""")
PROVINCES = table("""
广东 广州 粤
四川 成都 川
湖北 武汉 鄂
湖南 长沙 湘
陕西 西安 陕
山东 济南 鲁
山西 太原 晋
河北 石家庄 冀
河南 郑州 豫
江苏 南京 苏
浙江 杭州 浙
安徽 合肥 皖
福建 福州 闽
江西 南昌 赣
云南 昆明 滇
贵州 贵阳 黔
甘肃 兰州 甘
青海 西宁 青
辽宁 沈阳 辽
吉林 长春 吉
黑龙江 哈尔滨 黑
海南 海口 琼
""")
ANIMALS = table("""
猫 4 小猫 鱼 喵喵
狗 4 小狗 骨头 汪汪
鸡 2 小鸡 米 咯咯
鸭子 2 小鸭 小鱼 嘎嘎
牛 4 小牛 草 哞哞
羊 4 羊羔 草 咩咩
马 4 小马 草 嘶嘶
猪 4 小猪 饲料 哼哼
兔子 4 小兔 胡萝卜和草 很少出声
老虎 4 虎崽 肉 吼叫
熊猫 4 熊猫宝宝 竹子 很少出声
大象 4 小象 草和树叶 吼叫
猴子 4 小猴 水果 吱吱
青蛙 4 蝌蚪 虫子 呱呱
蜜蜂 6 幼蜂 花蜜 嗡嗡
蚂蚁 6 小蚂蚁 食物碎屑 听不见
蜘蛛 8 小蜘蛛 小虫 听不见
燕子 2 雏燕 虫子 叽叽
麻雀 2 雏鸟 谷子 叽叽喳喳
企鹅 2 小企鹅 鱼 嘎嘎
螃蟹 10 小蟹 小鱼小虾 听不见
长颈鹿 4 小长颈鹿 树叶 很少出声
骆驼 4 小骆驼 草 低吼
乌龟 4 小龟 菜叶和小虾 很少出声
""")
THINGS = table("""
雨伞 挡雨
铅笔 写字
剪刀 剪东西
冰箱 冷藏食物
钥匙 开门
牙刷 刷牙
镜子 照样子
温度计 量温度
锅 做饭
筷子 夹菜
梯子 登高
手电筒 照明
地图 找路
闹钟 叫人起床
毛巾 擦脸
扫帚 扫地
针 缝衣服
锤子 钉钉子
望远镜 看远处
显微镜 看很小的东西
指南针 辨方向
尺子 量长短
秤 称重量
口罩 挡灰尘和病菌
围巾 保暖
耳机 听声音
算盘 算数
渔网 捕鱼
自行车 代步
船 在水上行走
电话 和远处的人说话
相机 拍照
水壶 烧水或装水
枕头 睡觉时垫头
书包 装书
邮票 寄信
窗帘 遮光
橡皮 擦铅笔字
胶水 粘东西
风扇 吹风降温
""")
DEFINITIONS = table("""
勇敢 | 遇到危险和困难不害怕，敢去做该做的事
诚实 | 说真话，不骗人
友谊 | 朋友之间的感情
谦虚 | 不夸自己，肯向别人学习
节约 | 不浪费，把东西用在需要的地方
孝顺 | 尊敬父母，照顾父母
健康 | 身体好，心情也好
耐心 | 不急躁，能慢慢地等、慢慢地做
幽默 | 说话做事有趣，让人发笑
公平 | 对每个人都一样，不偏向谁
责任 | 自己应当做好的事
梦想 | 心里很想实现的事
互联网 | 把许多电脑连在一起、可以互相传递消息的网
人工智能 | 让机器学着像人一样看、听、说和思考的技术
天文学 | 研究星星和宇宙的学问
地震 | 地下的岩石突然断裂，使地面摇动
彩虹 | 雨后阳光照在小水珠上形成的七色光带
台风 | 海上形成的强大风暴，会带来大风大雨
潮汐 | 海水在月亮和太阳吸引下有规律地涨落
光合作用 | 植物用阳光把水和二氧化碳变成养分，放出氧气
蒸发 | 液体变成气体的过程
冰 | 水在零度以下变成的固体
化石 | 很久以前的生物留在石头里的痕迹
沙漠 | 雨水很少、多沙子、植物稀少的地方
岛 | 四面都是水的陆地
首都 | 一个国家的中央政府所在的城市
春节 | 农历新年，家人团圆，贴春联，吃年夜饭
端午节 | 农历五月初五，吃粽子，赛龙舟
中秋节 | 农历八月十五，赏月，吃月饼
重阳节 | 农历九月初九，登高，敬老
清明节 | 四月初，扫墓，踏青
元宵节 | 农历正月十五，赏灯，吃汤圆
成语 | 长期使用的固定短语，多由四个字组成
诗歌 | 用简练、有节奏的语言表达感情的文字
日记 | 每天把做的事和想法写下来的文字
预算 | 事先算好要用多少钱
利息 | 存钱或借钱时多得到或多付的钱
民主 | 大家一起商量、按多数人的意见决定
法律 | 国家定的、人人要遵守的规则
垃圾分类 | 把不同的垃圾分开放，方便处理和再用
过敏 | 身体对某些东西反应太强，比如发痒、打喷嚏
疫苗 | 打进身体、让人不容易得某种病的药
氧气 | 空气里人呼吸需要的气体
重力 | 地球把东西向下拉的力
密度 | 同样大小的东西有多重
圆周率 | 圆的周长和直径的比，大约3.14
质数 | 只能被1和自己整除的大于1的整数
偶数 | 能被2整除的整数
三角形 | 有三条边和三个角的图形
平均数 | 把几个数加起来再除以个数得到的数
算法 | 解决一个问题的一步步的办法
密码 | 只有自己知道、用来证明身份的字符
浏览器 | 用来看网页的软件
键盘 | 用来打字的设备
博物馆 | 收藏和展出有价值的东西给人看的地方
图书馆 | 收藏图书、让人借阅的地方
丝绸之路 | 古代从中国通向西方的商路
长城 | 中国古代为防守修建的很长的城墙
京剧 | 中国的一种戏曲，有唱、念、做、打
书法 | 用毛笔写字的艺术
太极拳 | 动作缓慢柔和的中国拳术
""")
OPPOSITES = table("""
大 小
高 矮
长 短
快 慢
冷 热
黑 白
多 少
远 近
新 旧
胖 瘦
轻 重
早 晚
左 右
上 下
前 后
里 外
开 关
真 假
好 坏
美 丑
安静 吵闹
高兴 难过
勇敢 胆小
干净 肮脏
认真 马虎
勤劳 懒惰
聪明 愚笨
成功 失败
开始 结束
增加 减少
简单 复杂
安全 危险
光明 黑暗
温暖 寒冷
表扬 批评
节约 浪费
进步 退步
谦虚 骄傲
""")
SYNONYMS = table("""
高兴 快乐
漂亮 美丽
立刻 马上
忽然 突然
著名 有名
仔细 认真
常常 经常
害怕 恐惧
帮助 协助
喜欢 喜爱
生气 愤怒
安静 宁静
思考 考虑
寒冷 冰冷
非常 十分
希望 盼望
必须 一定
答应 同意
特别 格外
疲倦 疲劳
""")
ENGLISH = table("""
苹果 apple
香蕉 banana
水 water
书 book
猫 cat
狗 dog
太阳 sun
月亮 moon
星星 star
老师 teacher
学生 student
朋友 friend
学校 school
家 home
妈妈 mother
爸爸 father
红色 red
蓝色 blue
绿色 green
白色 white
黑色 black
大 big
小 small
快 fast
慢 slow
好 good
坏 bad
早上 morning
晚上 night
今天 today
明天 tomorrow
雨 rain
雪 snow
花 flower
树 tree
鱼 fish
鸟 bird
牛奶 milk
面包 bread
米饭 rice
茶 tea
咖啡 coffee
椅子 chair
桌子 table
门 door
窗户 window
汽车 car
火车 train
飞机 plane
城市 city
海 sea
山 mountain
河 river
音乐 music
电影 movie
钱 money
时间 time
爱 love
谢谢 | thank you
你好 hello
再见 goodbye
医生 doctor
手 hand
眼睛 eye
春天 spring
夏天 summer
秋天 autumn
冬天 winter
""")
CONVERSIONS = table("""
米 厘米 100
千米 米 1000
千克 克 1000
小时 分钟 60
分钟 秒 60
天 小时 24
星期 天 7
年 个月 12
元 角 10
吨 千克 1000
升 毫升 1000
斤 两 10
世纪 年 100
打 个 12
""")
SINGLE = table("""
一年有[几|多少]个月 | 12个月
一年有[几个|多少个]季节 | 四个：春、夏、秋、冬
一周有几天 | 7天
[太阳|早上太阳]从哪边[升起|出来] | 东边
太阳[从|在]哪边落下 | 西边
水[在|]多少度[结冰|会结冰] | 0度
水[在|]多少度[沸腾|烧开] | 100度
地球[绕|围着]什么转 | 太阳
月亮[绕|围着]什么转 | 地球
人有几只手 | 两只手
一只手有几根手指 | 五根
彩虹有[几种|哪些]颜色 | 七种：红、橙、黄、绿、青、蓝、紫
[世界上|]最高的山[是什么|是哪座] | 珠穆朗玛峰
中国最长的河[是什么|是哪条] | 长江
[世界上|]最大的[洋|海洋]是[哪个|什么] | 太平洋
[世界上|]最大的动物是什么 | 蓝鲸
[陆地上|]跑得最快的动物是什么 | 猎豹
最大的行星是[哪颗|什么] | 木星
离太阳最近的行星是[哪颗|什么] | 水星
太阳系有几颗行星 | 八颗
中国的国旗[叫什么|是什么] | 五星红旗
中国的母亲河是[哪条|什么] | 黄河
《静夜思》[是谁写的|的作者是谁] | 李白
《春晓》[是谁写的|的作者是谁] | 孟浩然
《西游记》[是谁写的|的作者是谁] | 吴承恩
《红楼梦》[是谁写的|的作者是谁] | 曹雪芹
《三国演义》[是谁写的|的作者是谁] | 罗贯中
《水浒传》[是谁写的|的作者是谁] | 施耐庵
孙悟空[的|]师父是谁 | 唐僧
四大发明[是什么|有哪些] | 造纸术、印刷术、火药、指南针
文房四宝[是什么|有哪些] | 笔、墨、纸、砚
[人|人类]呼吸[需要|要]什么[气体|] | 氧气
植物[进行|]光合作用[需要|要]什么 | 阳光、水和二氧化碳
三角形[有|]几[条|个]边 | 三条边
正方形[有|]几个角 | 四个角
蜜蜂[酿|做]什么 | 蜂蜜
蚕吐什么 | 丝
铁生锈[是什么颜色|变成什么颜色] | 红褐色
[红|红色]和[黄|黄色]混合是什么颜色 | 橙色
[蓝|蓝色]和[黄|黄色]混合是什么颜色 | 绿色
[红|红色]和[蓝|蓝色]混合是什么颜色 | 紫色
声音在[空气|水]里能传播吗 | 能
冰[放在太阳下|受热]会[怎样|变成什么] | 融化成水
电灯是谁改进的 | 爱迪生
[第一个|首个]登上月球的人是谁 | 阿姆斯特朗
一米[等于|是]几尺 | 三尺
半斤[等于|是]几两 | 五两
元旦是[哪天|几月几日] | 1月1日
国庆节是[哪天|几月几日] | 10月1日
儿童节是[哪天|几月几日] | 6月1日
劳动节是[哪天|几月几日] | 5月1日
教师节是[哪天|几月几日] | 9月10日
妇女节是[哪天|几月几日] | 3月8日
[火警|着火了]打什么电话 | 119
[报警|遇到小偷]打什么电话 | 110
[急救|有人晕倒]打什么电话 | 120
[红灯|看到红灯][亮了|]该[怎么做|做什么] | 停下来等
[绿灯|看到绿灯][亮了|]该[怎么做|做什么] | 看清两边再走
""")
ZODIAC = "鼠牛虎兔龙蛇马羊猴鸡狗猪"


def facts(rng: random.Random) -> Turns:
    maker = rng.choice(
        [_countries, _countries, _provinces, _animals, _things, _singles, _singles, _units, _zodiac]
    )
    return maker(rng)


def _countries(rng: random.Random) -> Turns:
    c, capital, continent, money = rng.choice(COUNTRIES)
    q, a = rng.choice(
        [
            ("{c}的首都[是哪里|是什么|在哪|叫什么]？", "[{c}的首都是|]{k}。"),
            ("[说出|写出|告诉我]{c}的首都", "{k}。"),
            ("{k}是哪个国家的首都？", "{k}是{c}的首都。"),
            ("{c}在哪个[洲|大洲]？", "[{c}在|在|]{n}。"),
            ("{c}[用什么钱|的货币是什么|花什么钱]？", "[用|]{m}。"),
        ]
    )
    slots = {"c": c, "k": capital, "n": continent, "m": money}
    turns = [(one_of(rng, [q], **slots), one_of(rng, [a], **slots))]
    if rng.random() < 0.35:
        d = rng.choice(COUNTRIES)
        if "首都" in q and not q.startswith("{k}"):
            turns.append((f"{d[0]}呢？", f"{d[0]}的首都是{d[1]}。"))
        elif "洲" in q:
            turns.append((f"那{d[0]}呢？", f"{d[0]}在{d[2]}。"))
    return turns


def _provinces(rng: random.Random) -> Turns:
    p, capital, short = rng.choice(PROVINCES)
    q, a = rng.choice(
        [("{p}的省会[是哪里|是哪|在哪]？", "[{p}的省会是|]{k}。"), ("{k}是哪个省的省会？", "{p}[省|]。"),
         ("{p}的简称[是什么|是哪个字]？", "{s}。"), ("“{s}”是哪个省的简称？", "{p}。")]
    )  # fmt: skip
    slots = {"p": p, "k": capital, "s": short}
    return [(one_of(rng, [q], **slots), one_of(rng, [a], **slots))]


def _animals(rng: random.Random) -> Turns:
    name, legs, young, eats, sound = rng.choice(ANIMALS)
    q, a = rng.choice(
        [("{n}有几[条腿|只脚]？", "{l}条[腿|]。"), ("{n}[吃什么|喜欢吃什么|爱吃什么]？", "[{n}吃|吃]{e}。"),
         ("{n}的[宝宝|孩子|幼崽]叫什么？", "[叫|]{y}。"), ("{n}怎么叫？", "{s}。"), ("什么动物吃{e}？", "{n}[吃{e}|]。")]
    )  # fmt: skip
    slots = {"n": name, "l": legs, "y": young, "e": eats, "s": sound}
    turns = [(one_of(rng, [q], **slots), one_of(rng, [a], **slots))]
    if q.startswith("{n}有几") and rng.random() < 0.5:
        other = rng.choice(ANIMALS)
        turns.append((f"{other[0]}呢？", f"{other[1]}条腿。"))
    return turns


def _things(rng: random.Random) -> Turns:
    name, use = rng.choice(THINGS)
    q, a = rng.choice(
        [("{n}[是做什么用的|有什么用|可以用来做什么|用来干什么]？", "[{n}用来|用来|可以]{u}。"), ("[用什么|什么东西可以|拿什么]{u}？", "[用|可以用|]{n}。"),
         ("[我要|我想]{u}，[需要什么|用什么好]？", "[需要|用]{n}。")]
    )  # fmt: skip
    return [(one_of(rng, [q], n=name, u=use), one_of(rng, [a], n=name, u=use))]


def _singles(rng: random.Random) -> Turns:
    q, a = rng.choice(SINGLE)
    lead = one_of(rng, ["", "", "", "请问", "你知道", "回答问题：", "问你一个问题："])
    return [(lead + one_of(rng, [q]) + rng.choice(["？", "？", "?", "", "呀？"]), a + "。")]


def _units(rng: random.Random) -> Turns:
    big, small, factor = rng.choice(CONVERSIONS)
    n = rng.randint(1, 30)
    if rng.random() < 0.7:
        return [(one_of(rng, ["{n}{b}[是|等于]多少{s}？", "{n}{b}有[几|多少]{s}？"], n=n, b=big, s=small), f"{n * int(factor)}{small}。")]  # fmt: skip
    return [
        (
            one_of(rng, ["{m}{s}[是|等于]多少{b}？"], m=n * int(factor), b=big, s=small),
            f"{n}{big}。",
        )
    ]


def _zodiac(rng: random.Random) -> Turns:
    year = rng.randint(1940, 2030)
    sign = ZODIAC[(year - 2008) % 12]
    if rng.random() < 0.6:
        return [(one_of(rng, ["{y}年[出生的人|生的]属什么？", "{y}年是什么年？[生肖|属相]是？"], y=year), one_of(rng, ["属{s}。", "{y}年是{s}年。"], y=year, s=sign))]  # fmt: skip
    at = rng.randrange(12)
    return [(f"十二生肖里{ZODIAC[at]}[的|]后面是什么？".replace("[的|]", rng.choice(["的", ""])), f"{ZODIAC[(at + 1) % 12]}。")]  # fmt: skip


def definition(rng: random.Random) -> Turns:
    word, meaning = rng.choice(DEFINITIONS)
    q = one_of(rng, ["什么是{w}？", "{w}是什么[意思|]？", "[请|]解释一下{w}", "“{w}”[怎么解释|是什么意思]？", "用一句话说明{w}", "我不懂{w}，[讲讲|说说]"], w=word)  # fmt: skip
    if rng.random() < 0.1:
        return [(f"“{meaning}”说的是什么？", f"{word}。")]
    return [
        (
            q,
            one_of(
                rng, ["{w}[是|就是]{m}。", "[{w}|]{m}。", "简单说，{w}就是{m}。"], w=word, m=meaning
            ),
        )
    ]


def words(rng: random.Random) -> Turns:
    kind = rng.randrange(4)
    if kind == 0:
        a, b = rng.choice(OPPOSITES)
        a, b = rng.choice([(a, b), (b, a)])
        turns = [(one_of(rng, ["“{a}”的反义词[是什么|是|]？", "{a}的反义词", "[写出|说出]{a}的反义词", "和“{a}”意思相反的词[是什么|有哪些]？"], a=a), f"{b}。")]  # fmt: skip
        if rng.random() < 0.3:
            c, d = rng.choice(OPPOSITES)
            turns.append((f"{c}呢？", f"{d}。"))
        return turns
    if kind == 1:
        a, b = rng.choice(SYNONYMS)
        a, b = rng.choice([(a, b), (b, a)])
        return [
            (
                one_of(
                    rng,
                    [
                        "“{a}”的近义词[是什么|]？",
                        "{a}的[近义词|同义词]",
                        "和“{a}”意思[差不多|相近]的词",
                    ],
                    a=a,
                ),
                f"{b}。",
            )
        ]
    a, b = rng.choice(ENGLISH)
    if kind == 2:
        turns = [(one_of(rng, ["{a}[的|]英[语|文]怎么说？", "把“{a}”翻译成英[语|文]", "{a}用英语[怎么写|是什么]？", "“{a}”[英文|的英文]"], a=a), one_of(rng, ["{b}", "{b}。"], b=b))]  # fmt: skip
        if rng.random() < 0.4:
            c, d = rng.choice(ENGLISH)
            turns.append((one_of(rng, ["{c}呢？", "那{c}呢？"], c=c), d))
        return turns
    return [(one_of(rng, ["{b}是什么意思？", "{b}[用中文怎么说|翻译成中文]", "把 {b} 翻译成中文", "英语单词{b}的[意思|中文意思]"], b=b), one_of(rng, ["{a}", "{a}。"], a=a))]  # fmt: skip
