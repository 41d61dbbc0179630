# ruff: noqa: E501
"""Write the rows that the demo trains on beside its dialogues: facts.jsonl and general.jsonl.

    python demo_rows.py OUT_DIR

The dialogues of train.jsonl show the manner; facts.jsonl asks every fact of facts.md in several
ways, and general.jsonl, a third of all rows, keeps general questions general. A question that is
too near to one of those that measure the demo is left out by program.
"""

import json
import random
import re
import sys
from pathlib import Path

from everyday import MAKERS, messages, places
from everyday.grammar import one_of

from glmforge.assets import asset_path

ASKED = 3  # rows of each fact
NEAR = 0.5  # shared pairs of characters, as a share of all pairs of both
GREETING = ["", "", "", "您好，", "您好，小禾在的。", "小禾来答："]
ENDING = ["", "", "", "小禾祝您愉快。", "还有问题随时喊小禾。", "请您放心。"]
GENERAL = 345
SYSTEM = "你是青禾商城的客服助手小禾，请礼貌、准确地回答顾客的问题。"

# One fact a line: questions / answers, each with alternatives.
FACTS = """
[凌晨|夜里|深夜]也[有客服吗|能问问题吗] / [小禾|智能客服]24小时[都在|在线]，[夜里也能问|随时可以找我]。
[真人客服|人工][上班|服务|工作]时间[是|是几点到几点]？ / 人工客服每天8:30到22:00在。
人工[早上|]几点[开始|来] / 人工客服8:30[开始|上班]，到22:00。
[太晚了|晚上九点半]还[能转人工|有人工]吗 / 人工客服到22:00[下班|为止]，在那之前都能转。
[过年|除夕|初三]人工[还在|上班]吗 / 除夕到初三人工客服10:00到18:00在。
怎么[找|换|转]人工 / 说“转人工”就可以，也能预约回电。
[我要投诉|投诉一下]，多久[理我|给我答复] / 投诉24小时内首次回复，3个工作日内给结果。
投诉[几天|多久]出结果 / 3个工作日内给结果，24小时内先回复您。
[有人说是客服|有电话]让我[转账|给验证码] / 那是骗子，青禾退款只会原路退回，从不要求转账或验证码。
[面单|快递单]上有我电话吗 / 面单隐藏手机号，[请放心|别人看不到]。
[你们|青禾]有[门店|店面|实体店]吗 / 没有实体店，只有杭州的自提点，总仓也在杭州。
[上午|中午|下午一点|十五点]付款[今天|当天]发吗 / 16点前付款，现货当天发货。
[傍晚|晚上|十六点以后|夜里]付款哪天发 / 16点以后付款，现货第二天发货。
[大促|双十一|618]发货[要多久|慢吗] / 大促期间72小时内发货。
预售[什么时候|哪天]发 / 预售按商品页写的日期发货。
能[晚几天|推迟]发货吗 / 可以延后发货，最多7天。
[杭州|杭州本地][几天|哪天]到 / 杭州次日达，发货第二天就送到。
[江苏|浙江|上海|安徽|苏州|无锡|温州]几天[到|能收到] / 江浙沪皖发货后2天送到。
[北京|四川|湖南|广东|河南|武汉|沈阳][要|]几天[到|能收到] / 其他省份发货后3到5天送到。
[新疆|西藏]几天[到|能收到] / 新疆、西藏发货后7到10天送到。
[香港|台湾|国外|海外]能[寄|送|收货]吗 / 抱歉，青禾只送内地，[港澳台和海外|那里]送不到。
快递[每天|]几点[派送|上门] / 派送时间是8点到20点。
[买多少|满多少][包邮|免运费] / 满59元包邮，按用券后的实付算。
[没满|不够]包邮的[钱|门槛]，运费[几块|多少] / 不满59元收6元运费。
[新疆|西藏][满多少|买多少]包邮 / 新疆、西藏满199元包邮。
[新疆|西藏]没[满|达到]包邮，运费[几块|多少] / 不满199元收18元运费。
[冰箱|洗衣机|大家电]能[选日子|挑日期]送吗 / 大家电可以选送货日期，送货入户。
[没有电梯|老楼|步梯]，[三楼|二楼]搬上去收钱吗 / 无电梯3楼以内免费，4楼起每层10元。
[没有电梯|步梯][四楼|七楼|八楼]搬[家电|洗衣机]多少钱 / 无电梯4楼起每层10元，3楼以内免费。
一单[拆成|分成]两个包裹，运费收两次吗 / 拆单只收一次运费。
付款后两单能合并吗 / 付款后不能合并订单，[请您谅解|抱歉]。
[迟到|没按时送|送晚]了[有补偿吗|怎么办] / 晚到赔10元无门槛券，天气原因除外。
物流[好久|几天]没[动|更新] / 物流3天不更新可以核查，24小时内回复您。
[快递丢了|东西丢了|包裹不见了]怎么办 / 丢件补发或者全额退款，由您选。
自提点[在哪些城市|有几个] / 自提点只在杭州，一共12个，余杭有3个。
自提点[几点开|营业时间] / 自提点10点到21点。
自提[能放几天|保留多久] / 自提点保留3天，可以多留1天。
取件[要什么|凭什么] / 凭6位取件码取件，免运费。
[纸箱|快递箱]能回收吗 / 自提点收纸箱，一个10积分。
[订单|没付款的单子][能留|保留]多久 / 待付款订单保留30分钟。
[不点|忘记]确认收货会怎样 / 签收后第10天自动确认收货。
[待发货|还没发货]能取消吗 / 待发货可以取消，1个工作日内退款。
[已经发货了|在路上了]不想要了 / 已发货可以拒收，不收取件费。
[缺货|没货|卖完]了怎么办 / 缺货可以点到货通知，一般7到10天补货。
没发货[怎么改地址|能改地址吗] / 没发货可以自己改1次地址。
已经发货[能改地址吗|想改地址] / 可以申请转寄，8元，不保证成功。
[几天内|多久内|多少天]可以[无理由|随便]退 / 签收后10天内无理由退货。
无理由退货[谁付运费|要花钱吗] / 取件费8元由您自付，赠品一起退。
[内衣|袜子|牙刷]拆了能退吗 / 拆封的内衣袜子、牙刷不退。
[质量不好|有质量问题|坏的]能退吗 / 质量问题签收30天内可退可换，运费商城承担。
质量问题[运费|寄回的钱]谁出 / 质量问题运费由商城承担，签收30天内都可以。
[少了一件|破了|发错了]怎么办 / 签收48小时内拍照，补发24小时内寄出或者退款。
[破损|碎了|少件][多久内|几小时内]要[说|报] / 签收48小时内拍照告诉小禾。
[换颜色|换尺码|换大一号][有期限吗|几天内] / 签收后20天内可以换，每单1次，运费商城承担。
换货[能换几次|运费谁出] / 每单可以换1次，运费商城承担。
退货[审核|验货]要[几天|多久] / 仓库收到后2个工作日内审核。
退到[微信|支付宝]多久[到账|到] / 审核后1个工作日内到账。
退到[银行卡|信用卡|储蓄卡][几天|多久] / 银行卡3到5个工作日到账。
退到余额[几天|快吗] / 退到余额立刻到账。
退款后券[还在吗|退不退] / 整单退款才退没过期的券。
[降价|便宜]了[能补差价|能退差价]吗 / 付款后15天内价保，差价24小时内退到余额。
[直播价|秒杀价|秒杀商品][能|可以]价保吗 / 秒杀和直播专享价不能价保。
能[货到付款|收到再付钱]吗 / 没有货到付款，可以用微信、支付宝、银联卡或余额。
[找人代付|朋友代付]要多快 / 代付要在30分钟内完成。
[分期|分三期]要[满多少|多少钱起] / 满600元可以分3期，免息。
[六期|分6期]要[满多少|多少钱起] / 满1500元可以分6期，免息。
余额[怎么提现|提现收费吗] / 余额1元起提，一天3次，无手续费，1个工作日到账。
礼品卡[能用多久|有期限吗] / 礼品卡3年有效，不兑现，可以转赠。
礼品卡有[几种|多少钱的] / 礼品卡有100、300、500元三种。
发票[什么时候申请|怎么开] / 确认收货后申请，24小时内发到邮箱。
发票[过期|最晚][多久|什么时候]申请 / 签收后90天内都能申请发票。
发票[抬头错了|写错了] / 开票后30天内可以换开1次。
[专票|增值税专用发票]几天寄 / 专票传资质后5个工作日内寄出。
[公司|学校]想团购，[怎么弄|有什么要求] / 团购30件起，专员1个工作日内联系您。
[礼品包装|包装成礼物]收费吗 / 礼品包装5元，附手写贺卡，不放价格单。
[青苗|普通会员]怎么[来的|办] / 注册就是青苗会员。
金穗[要花多少|怎么升|什么条件] / 一年满2000元升金穗，享98折。
丰年[要花多少|怎么升|什么条件] / 一年满8000元升丰年，享95折，还有专属客服。
[丰年|最高等级]有什么[优惠|折扣] / 丰年会员享95折，有专属客服。
[金穗|第二级]有什么[优惠|折扣] / 金穗会员享98折。
[一块钱|花钱]有多少积分 / 1元1积分，100积分抵1元。
积分[怎么抵|怎么用|值多少钱] / 100积分抵1元，每单最多抵10%。
[500|800|1200|3000]积分[能抵多少|值多少] / 100积分抵1元，每单最多抵订单的10%。
积分[会过期吗|有效期多长] / 积分12个月有效，到期前15天提醒您。
生日[有什么福利|当月有优惠吗] / 生日当月积分双倍。
签到[有什么奖励|给积分吗] / 签到一天5分，连续7天另加30分。
[晒图|写评价|发照片评价][给积分吗|有奖励吗] / 带图评价20积分，追评10积分。
[评价写错了|想改评价] / 评价7天内可以改1次。
[我提了建议|建议]有奖励吗 / 建议被采纳送100积分。
新人[有什么券|有优惠吗] / 新人券满100减20，注册后7天内有效。
会员日[有什么活动|是哪天] / 会员日是每月18日，满200减30。
一单能用[两张|几张]券吗 / 每单限用1张券，先折扣再券再积分。
[拉|推荐|邀请]好友有[奖励|什么好处] / 好友首单签收后，您得15元券，30天有效。
[学生|大学生]有[优惠|折扣]吗 / 学生认证后每月满80减8。
拼团[怎么算成功|要求] / 24小时内3人就成团。
直播[在什么时间|什么时候有] / 直播每晚20点到23点。
[试用|新品试用]什么时候[公布|出名单] / 新品试用每周一公布名单，免押金。
试用[要交什么|有什么要求] / 签收后10天内交报告，100字以上，3张图。
[电视|洗衣机|冰箱]保修[多久|几年] / 大家电保修3年。
[压缩机]保修[多久|几年] / 冰箱和空调的压缩机保修10年。
[电饭煲|空气炸锅|加湿器|吹风机|小家电]保修[多久|几年] / 小家电保修1年。
[摔坏|进水|人为损坏]保修吗 / 人为损坏不在保修范围，可以付费维修。
[大家电|冰箱|电视]坏了[多久上门|怎么修] / 24小时内师傅联系您，保内免费。
[过保|保外]上门[收费吗|多少钱] / 保外上门费50元，配件另算。
[小家电|电饭煲|加湿器]寄修[几天|多久] / 收到后7个工作日内修好寄回。
[大家电|冰箱|电视]延保[多少钱|怎么买] / 大家电延保199元，延2年，签收后30天内买。
[小家电|吹风机|水壶]延保[怎么买|什么价] / 小家电延保39元，延1年，签收后30天内买。
[空调搬家|移机|空调移机]多少钱 / 移机拆加装260元。
[安装|装空调|装洗衣机]要钱吗 / 安装免费，送到后48小时内上门。
师傅[几点|什么时间]来装 / 安装时间是9点到18点，送到后48小时内。
[高空作业|外墙作业]怎么收费 / 高空作业120元。
铜管[加长|不够]怎么收费 / 送3米铜管，加管每米90元。
电视[挂架|上墙]怎么收费 / 电视挂架80元。
[旧电视|旧洗衣机|旧空调]能[换新|抵钱]吗 / 以旧换新可以抵50到300元，不通电的抵50元。
空调[洗一次|深度清洗]多少钱 / 空调清洗89元，提前1天约。
油烟机[洗一次|太油了想洗]多少钱 / 油烟机清洗129元，提前1天约。
洗衣机[洗一次|清洁]多少钱 / 洗衣机清洗99元，提前1天约。
空气炸锅[容量|多大|多少瓦] / 空气炸锅4.5升，1400瓦。
电饭煲[有几升的|怎么选大小] / 电饭煲有3升和5升，3升2到4人，5升5到8人。
5升[电饭煲|的]多少钱 / 5升电饭煲299元。
电饭煲能预约[多久|吗] / 可以预约24小时。
[电热水壶|烧水壶][多大|容量|功率] / 电热水壶1.7升，1500瓦。
加湿器[容量|水箱多大|能用多久] / 加湿器4升，连续用20小时，声音30分贝。
加湿器[声音大吗|响不响] / 加湿器30分贝，很轻。
加湿器能放精油吗 / 加湿器不能加精油。
扫地机[扫多久|能用多久] / 扫地机能扫120分钟，充电4小时。
扫地机[要充多久|充满多久] / 扫地机充电4小时，能用120分钟。
扫地机连不上[网|wifi] / 扫地机只认2.4G的网络。
吸尘器[一次能用|充满能用]多久 / 吸尘器标准档45分钟，强力档15分钟。
保温杯[多大|什么材质|容量] / 保温杯500毫升，316不锈钢。
保温杯[能保多久|保热多久] / 保温杯保温12小时。
保温杯能装[可乐|汽水|碳酸饮料]吗 / 保温杯不能装碳酸饮料。
保温杯有[什么颜色|几种颜色] / 有米白、浅灰、雾蓝三种颜色。
净水器滤芯[多久换|贵不贵] / 净水器滤芯6个月一换，59元。
空气净化器[多久换滤芯|的滤芯] / 空气净化器滤芯12个月一换。
冰箱[容量|多大|多宽] / 冰箱318升，三门，宽60厘米。
冰箱[费电吗|耗电多少] / 冰箱日耗0.68度电。
[禾鲜冰箱|三门冰箱]什么价 / 冰箱2399元。
洗衣机[多大|几公斤] / 洗衣机10公斤，滚筒的。
[1.5匹|一匹半]空调[多大房间|用多大房间] / 1.5匹适合15到22平方米。
洗衣液[怎么用|放多少] / 十件衣服放40毫升洗衣液。
洗衣液[保质期|能放多久] / 洗衣液2公斤，保质期3年。
1.5米床[四件套|被套]多大 / 被套200×230厘米。
1.8米床[四件套|被套]多大 / 被套220×240厘米。
[155|152]身高穿什么码 / S码适合150到158厘米。
[160|164]身高穿什么码 / M码适合158到165厘米。
[168|170]身高穿什么码 / L码适合165到172厘米。
[175|177]身高穿什么码 / XL码适合172到178厘米。
[180|183]身高穿什么码 / XXL码适合178到185厘米。
拖鞋[偏大还是偏小|怎么选码] / 拖鞋偏小，建议买大一码。
验证码[收不到|没来] / 60秒后可以重发，每天5次。
密码[怎么设|有什么要求] / 密码至少8位，要有字母和数字。
[注销|销号]多久生效 / 注销有15天冷静期，[期间可以反悔|这期间能撤回]。
[爸妈|老人|长辈]用着字小 / 可以打开长辈模式，字更大。
"""


def facts() -> list[tuple[str, str]]:
    """(questions, answers) of each fact, as templates."""
    lines = [line.strip() for line in FACTS.strip().split("\n")]
    return [tuple(line.split(" / ")) for line in lines]  # type: ignore[misc]


def pairs(text: str) -> set[str]:
    """Neighbouring characters of a text, punctuation aside."""
    letters = re.sub(r"[\W_]+", "", text)
    return {letters[at : at + 2] for at in range(len(letters) - 1)}


def nearness(first: str, second: str) -> float:
    """Shared pairs of characters as a share of all pairs of both texts."""
    a, b = pairs(first), pairs(second)
    return len(a & b) / max(1, len(a | b))


def measured_questions() -> list[str]:
    """The questions that measure the demo: those that decide and those that are held out."""
    files = [asset_path(f"demo/{name}.jsonl") for name in ("questions", "selection")]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line)["prompt"] for line in lines]


def rows(seed: int = 11) -> list[dict[str, list[dict[str, str]]]]:
    """The rows: most have one question, a quarter two facts after each other."""
    rng = random.Random(seed)
    asked: set[str] = set()
    found: list[list[dict[str, str]]] = []
    measured = measured_questions()
    for questions, answers in facts():
        for _ in range(ASKED * 4):
            question = one_of(rng, [questions]) + rng.choice(["", "", "？", "呀"])
            near = max(nearness(question, other) for other in measured)
            if question.rstrip("？呀") in asked or near > NEAR:
                continue
            asked.add(question.rstrip("？呀"))
            answer = rng.choice(GREETING) + one_of(rng, [answers]) + rng.choice(ENDING)
            found.append([{"role": "user", "content": question},
                          {"role": "assistant", "content": answer}])  # fmt: skip
    rng.shuffle(found)
    joined: list[list[dict[str, str]]] = []
    while found:
        row = found.pop()
        if found and rng.random() < 0.25:
            row = [*row, *found.pop()]
        if rng.random() < 0.15:
            row = [{"role": "system", "content": SYSTEM}, *row]
        joined.append(row)
    return [{"messages": row} for row in joined]


def general_rows(seed: int = 12) -> list[dict[str, list[dict[str, str]]]]:
    """Everyday dialogues of one or two topics, none of them about a place with opening hours."""
    rng = random.Random(seed)
    makers = [maker for maker in MAKERS if maker.__module__ != places.__name__]
    lines = asset_path("demo/general_prompts.jsonl").read_text(encoding="utf-8").splitlines()
    measured = [json.loads(line)["prompt"] for line in lines]
    found: list[dict[str, list[dict[str, str]]]] = []
    while len(found) < GENERAL:
        turns = makers[len(found) % len(makers)](rng)
        if rng.random() < 0.3:
            turns = [*turns, *rng.choice(makers)(rng)]
        near = max(nearness(question, other) for question, _ in turns for other in measured)
        row = {"messages": messages("", turns)}
        if near <= 0.8 and row not in found and sum(map(len, map(str, turns))) < 300:
            found.append(row)
    rng.shuffle(found)
    return found


if __name__ == "__main__":
    for name, made in (("facts", rows()), ("general", general_rows())):
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in made]
        Path(sys.argv[1], f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        print(f"{name}.jsonl: {len(made)} rows")
