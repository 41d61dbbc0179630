"""Everyday dialogues written by program from tables and templates written by hand.

``dialogues(seed, number)`` yields distinct dialogues as lists of messages. Most are short; a third
join two or three topics, so that a model learns to follow a change of subject.
"""

import hashlib
import random
from collections.abc import Iterator

from everyday import (
    english,
    errands,
    knowledge,
    offices,
    places,
    refusals,
    smalltalk,
    stories,
    sums,
    tasks,
)
from everyday.grammar import Maker, Turns

MAKERS: dict[Maker, float] = {
    smalltalk.greeting: 2,
    smalltalk.goodbye: 0.5,
    smalltalk.mood: 2,
    smalltalk.plan: 5,
    smalltalk.food: 3,
    smalltalk.about_me: 1.5,
    smalltalk.wish: 1,
    errands.weather: 5,
    errands.directions: 4,
    errands.market: 6,
    errands.cooking: 1,
    errands.calendar: 6,
    errands.travel: 5,
    knowledge.facts: 8,
    knowledge.definition: 2,
    knowledge.words: 3,
    sums.bare: 6,
    sums.compare: 4,
    sums.story_sum: 6,
    refusals.refusal: 3,
    stories.story: 6,
    tasks.listing: 5,
    tasks.sorting: 5,
    tasks.classify: 3,
    tasks.extract: 6,
    tasks.letters: 2,
    tasks.blank: 0.5,
    tasks.short: 4,
    english.english: 4,
    places.single: 14,
    places.dialogue: 14,
    places.from_notice: 6,
    offices.single: 18,
    offices.from_rules: 10,
}
AT_THE_DESK = 0.14
"""Share of dialogues that a system message opens."""


def dialogues(seed: int, number: int) -> Iterator[list[dict[str, str]]]:
    """Yield distinct dialogues; small topics run dry, the large ones go on.

    Args:
        seed: the same seed gives the same dialogues in the same order.
        number: of dialogues.
    """
    rng = random.Random(seed)
    seen: set[bytes] = set()
    makers, weights = list(MAKERS), list(MAKERS.values())
    made = 0
    while made < number:
        if rng.random() < AT_THE_DESK:
            system, turns = rng.choice((places, offices)).at_the_desk(rng)
        else:
            system, turns = "", rng.choices(makers, weights)[0](rng)
            while rng.random() < 0.25 and len(turns) < 6:
                turns = [*turns, *rng.choices(makers, weights)[0](rng)]
        digest = hashlib.sha256(repr((system, turns)).encode()).digest()[:12]
        if digest in seen:
            continue
        seen.add(digest)
        made += 1
        yield messages(system, turns)


def messages(system: str, turns: Turns) -> list[dict[str, str]]:
    """Turns as the messages of a training record."""
    found = [{"role": "system", "content": system}] if system else []
    for question, answer in turns:
        found.append({"role": "user", "content": question})
        found.append({"role": "assistant", "content": answer})
    return found


def texts(seed: int, number: int) -> Iterator[str]:
    """Yield distinct plain texts in the same language: stories, places, recipes."""
    rng = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < number:
        text = stories.story_text(rng)[0] if rng.random() < 0.6 else places.description(rng)
        if text not in seen:
            seen.add(text)
            yield text
