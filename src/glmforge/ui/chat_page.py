"""The chat page of `glmforge serve`: base left, tuned right, one input for both.

One HTML text that needs nothing from elsewhere; it asks the server it came from and no other,
which its content policy enforces. It wears the style of the comparison's page. Text of models and
users enters it as text nodes only.
"""

import json
from collections.abc import Sequence

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from glmforge.assets import asset_path


def chat_page(names: Sequence[str]) -> str:
    """Return the page's HTML for a server whose models have these names, the base first."""
    pages = asset_path("pages")
    environment = Environment(
        loader=FileSystemLoader(pages),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    styles = [(pages / name).read_text(encoding="utf-8") for name in ("compare.css", "chat.css")]
    embedded = json.dumps({"models": list(names)})
    for character in "<>&":
        embedded = embedded.replace(character, f"\\u{ord(character):04x}")
    return environment.get_template("chat.html.jinja").render(
        style=Markup("\n".join(styles)),
        script=Markup((pages / "chat.js").read_text(encoding="utf-8")),
        data=Markup(embedded),
        names=list(names),
    )
