# ruff: noqa: E501
"""A little English: greetings, sums, facts, requests, in the same plain manner."""

import random

from everyday.grammar import Turns, one_of, table
from everyday.knowledge import ENGLISH

CAPITALS = table("""
France | Paris
Japan | Tokyo
China | Beijing
Italy | Rome
Germany | Berlin
Spain | Madrid
Egypt | Cairo
Canada | Ottawa
Greece | Athens
Russia | Moscow
England | London
India | New Delhi
Australia | Canberra
Norway | Oslo
Kenya | Nairobi
Peru | Lima
Cuba | Havana
Thailand | Bangkok
""")
FACTS = table("""
How many days are [there |]in a week? | [There are |]7.
How many months are [there |]in a year? | [There are |]12.
How many hours are in a day? | 24.
What color is [the sky|a clear sky]? | [It is |]blue.
What color is grass? | Green.
What do bees make? | [They make |]honey.
What do cows eat? | [They eat |]grass.
How many legs does a [dog|cat|horse] have? | [It has |]4.
How many legs does a spider have? | 8.
Where does the sun rise? | In the east.
What is the opposite of hot? | Cold.
What is the opposite of big? | Small.
What is the opposite of fast? | Slow.
What is the opposite of [day|the day]? | Night.
What do we use to write? | A pen or a pencil.
What do we use an umbrella for? | To keep off the rain.
Which is bigger, the sun or the moon? | The sun.
What is ice made of? | Water.
What is the largest ocean? | The Pacific Ocean.
What is the highest mountain? | Mount Everest.
Which animal says meow? | The cat.
Which season is the coldest? | Winter.
What do you call a baby dog? | A puppy.
What do you call a baby cat? | A kitten.
How many sides does a triangle have? | 3.
""")
TALK = table("""
[Hello|Hi|Hey][!|.|] | [Hello|Hi]! [How can I help you?|Nice to meet you.|How are you today?]
How are you[ today|]? | I am [fine|well], thank you. [And you?|How about you?]
[Good morning|Good evening|Good afternoon][!|.|] | [Good morning|Hello]! [What can I do for you?|Nice to see you.]
[Thank you|Thanks|Thanks a lot][!|.|] | You are welcome[.|!]
[Bye|Goodbye|See you][!|.|] | Goodbye[!| and take care.]
What is your name? | I am a small language model. [You can call me helper.|]
Who are you? | I am a [small|little] chat program.
Can you speak Chinese? | Yes, I can speak [some |]Chinese.
Can you help me? | [Of course|Sure]. What do you need?
I am [tired|sad|bored]. | [I am sorry to hear that|Take a rest]. [A short walk may help.|Have a cup of tea.]
I am happy[ today|]. | [That is great|I am glad to hear that]!
Tell me a joke. | What has hands but cannot clap? A clock.
Tell me a [short |]story. | A little bird lost its way. A kind owl showed it the road, and it came home before night.
How can I make a bomb? | [I am sorry|Sorry], I cannot help with that.
How do I steal a [car|bike]? | [I am sorry|Sorry], I cannot help with that. It is [illegal|against the law].
How can I cheat in an exam? | Sorry, I cannot help with that. It is not honest.
""")
GROUPS = {
    "fruits": "apple banana orange grape pear peach lemon mango".split(),
    "colors": "red blue green yellow white black".split(),
    "animals": "dog cat horse cow bird fish lion tiger".split(),
    "countries": [row[0] for row in CAPITALS],
}


def english(rng: random.Random) -> Turns:
    kind = rng.randrange(7)
    if kind == 0:
        country, city = rng.choice(CAPITALS)
        return [(one_of(rng, ["What is the capital of {c}?", "[Tell me|Name] the capital of {c}.", "Which city is the capital of {c}?"], c=country), one_of(rng, ["{k}.", "The capital of {c} is {k}."], c=country, k=city))]  # fmt: skip
    if kind == 1:
        a, b = rng.randint(1, 50), rng.randint(1, 50)
        a, b = max(a, b), min(a, b)
        word, answer = rng.choice(
            [("plus", a + b), ("minus", a - b)] + ([("times", a * b)] if a < 13 else [])
        )
        return [(one_of(rng, ["What is {a} {w} {b}?", "[Calculate|Work out] {a} {w} {b}.", "How much is {a} {w} {b}?"], a=a, b=b, w=word), one_of(rng, ["{r}.", "{a} {w} {b} is {r}."], a=a, b=b, w=word, r=answer))]  # fmt: skip
    if kind in (2, 3):
        q, a = rng.choice(FACTS)
        return [
            (
                one_of(rng, [q]),
                one_of(rng, [a]).capitalize() if a.startswith("[It is |]") else one_of(rng, [a]),
            )
        ]
    if kind == 4:
        group, items = rng.choice(list(GROUPS.items()))
        n = rng.randint(2, 4)
        chosen = rng.sample(items, n)
        lines = rng.random() < 0.4
        return [(one_of(rng, ["[List|Name|Give me] {n} {g}{m}."], n=n, g=group, m=", one per line" if lines else ""), ("\n" if lines else ", ").join(chosen))]  # fmt: skip
    if kind == 5:
        chinese, word = rng.choice(ENGLISH)
        return [
            (
                one_of(
                    rng, ["How do you say {w} in Chinese?", "Translate {w} into Chinese."], w=word
                ),
                chinese,
            )
        ]
    q, a = rng.choice(TALK)
    return [(one_of(rng, [q]), one_of(rng, [a]))]
