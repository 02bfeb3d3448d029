"""Corpus files with random mutations: insertions, deletions, swaps, flipped bits."""

import random
from collections.abc import Iterator
from pathlib import Path

CORPUS = Path(__file__).parent / "oracle" / "corpus"
PIECES = (
    "{", "}", "[", "]", ",", ":", '"', "'", "\\", "/", "#", "//", "/*", "*/", "'''", "\n", "\r\n",
    " ", "\t", "=", "auto", "true", "True,", "null", "NaN", "-Infinity", "1e999", "5e8", "-0.0",
    "007", '"a": 1', "a: b", "{}", "[]", ",,", "\\u00e9", "\\ud83d\\ude00", "\\ud800", "\\x41",
    "\ufeff", "\u00a0", "\u2028", "\x00", "\x1b[31m", "\u0663", "${VAR}", "{{ x }}", "GPU_COUNT",
)  # fmt: skip


def texts() -> list[str]:
    """Return every corpus file as DeepSpeed reads it (with LF line endings)."""
    return [path.read_text("utf-8") for path in sorted(CORPUS.glob("*.json"))]


def mutants(count: int, seed: int) -> Iterator[str]:
    """Yield ``count`` corpus files, each with one to four mutations."""
    source = random.Random(seed)
    originals = texts()
    for _ in range(count):
        text = source.choice(originals)
        for _ in range(source.randint(1, 4)):
            text = _mutate(text, source)
        yield text


def _mutate(text: str, source: random.Random) -> str:
    at = source.randrange(len(text) + 1)
    match source.randrange(7):
        case 0:
            return text[:at] + source.choice(PIECES) + text[at:]
        case 1:
            return text[:at] + text[at + source.randint(1, 3) :]
        case 2:
            return text[:at] if source.random() < 0.5 else text[at:]
        case 3:
            return text[:at] + chr(source.randrange(0x250)) + text[at + 1 :]
        case 4:
            other = source.randrange(len(text) + 1)
            start, end = sorted((at, other))
            return text[:start] + text[end : end + 20] + text[start:]
        case 5:
            lines = text.split("\n")
            one, two = source.randrange(len(lines)), source.randrange(len(lines))
            lines[one], lines[two] = lines[two], lines[one]
            return "\n".join(lines)
        case _:
            flipped = bytearray(text.encode("utf-8", "replace"))
            if flipped:
                flipped[source.randrange(len(flipped))] ^= 1 << source.randrange(8)
            return flipped.decode("utf-8", "replace")
