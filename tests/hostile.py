"""Texts that a language may read as more than text."""

from hypothesis import strategies as st

HOSTILE = (
    "plain", "", " ", " padded ", "-", "--flag", "~", "yes", "No", "null", "=", "1e-4", "08",
    "0o17", "1:30", "1_000", ".inf", "#comment", "a #b", "key: value", "- item", "+ item", "===",
    "1. item",
    "x\nopen('owned', 'w')\n#", "x\n[training]\nsteps = 666\n#", "a\rb", "a\r\nb", "a\x85b",
    "a\u2028b", "a\u2029b", "a\x0bb\x0cc", "nul\0", '"', "'", '"""', "\\", "\\\"'", "$(id)",
    "${HOME}", "a$$b", "$x^2$", "`", "``", " ` ", "```\nfence\n```", "a`b``c", "|", "a\\|b",
    "![image](https://x.example/a.png)", "[link](https://x.example)", "@someone", "owner/name#1",
    "# heading", "*bold* _it_", "</script><script>", "<!--", "&amp;", "<b onclick='x'>",
    "::error file=a::owned", "##[error]owned", "%0A::error::owned", "https://x.example", "www.x.de",
    "\x1b]0;owned\x07", "\x1b[31mred", "\x9b31m", "\u202egnp.exe", "\u2066x", "\ufeffbom", "\uffff",
    "\U0001f600", "é", "_hidden", "{0}", "%s",
)  # fmt: skip
SURROGATES = ("\ud800", "a\udc80b")
"""Not Unicode: an argument of bytes that are not UTF-8, or an escape in JSON."""
SPECIAL = (
    "\n\r\t\0\x07\x1b\x7f\x85\x9b\u2028\u2029\u202e\ufeff\uffff`'\"\\$#|*_[]()<>!&@:%-~=\U0001f600"
)


def texts() -> st.SearchStrategy[str]:
    """Return texts without surrogates, many of special characters."""
    letters = st.characters(codec="utf-8") | st.sampled_from(SPECIAL) | st.sampled_from("a1. ")
    return st.sampled_from(HOSTILE) | st.text(letters, max_size=12)
