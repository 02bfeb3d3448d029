"""Is this text strict JSON? Python's own ``json`` decides, as in transformers and accelerate."""

import json

from dsconfig.source.document import Departure
from dsconfig.source.lines import LineIndex

BYTE_ORDER_MARK = "\ufeff"


def departure_from_json(text: str) -> Departure | None:
    """The first place that ``json.loads`` refuses; None where it reads the text."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        place = LineIndex(text).range(error.pos, error.pos + 1)
        return Departure(place, _why(text, error))
    except ValueError as error:  # an integer of more digits than Python reads
        return Departure(LineIndex(text).range(0, 0), str(error))
    return None


def _why(text: str, error: json.JSONDecodeError) -> str:
    """The construct that strict JSON does not have, in words."""
    rest = text[error.pos : error.pos + 2]
    before = text[: error.pos].rstrip()[-1:]
    if not text.strip():
        return "an empty text"
    if rest.startswith(BYTE_ORDER_MARK):
        return "a byte order mark"
    if rest.startswith("#") or rest in ("//", "/*"):
        return "a comment"
    if before == "," and rest[:1] in ("}", "]"):
        return "a trailing comma"
    if error.msg.startswith("Expecting property name"):
        return "a trailing comma" if rest[:1] == "}" else "a key without double quotes"
    if error.msg.startswith("Expecting ','"):
        return "a missing comma"
    if error.msg.startswith("Expecting value"):
        return "a value without quotes" if rest[:1] != "'" else "single quotes"
    return error.msg[:1].lower() + error.msg[1:]
