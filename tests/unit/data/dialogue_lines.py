"""Numbered dialogues of different lengths, a JSON line each."""

import json


def line(number):
    return json.dumps(
        {
            "messages": [
                {"role": "user", "content": f"问{number}"},
                {"role": "assistant", "content": "答" * (1 + number % 30)},
            ]
        },
        ensure_ascii=False,
    )
