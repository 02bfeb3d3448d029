"""The words of a training command against those that bash passes to a program of that name."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsconfig.source.shell import commands_of

BASH = shutil.which("bash")
PROGRAM = "torchrun"
pytestmark = pytest.mark.skipif(BASH is None, reason="needs bash")

START = "A=a1 B='b 2'\nLIST=(l1 'l 2')\nGPUS=8\nN=2\n"
NAMES = ("A", "B", "LIST", "GPUS")
words = st.sampled_from(["x", "7b", "a b", "--lr", "1e-5", "", "org/m-7b", "0,1,2", "k=v", "a*"])
plain = st.sampled_from(["x", "7b", "lr", "16", "4", "org/m-7b", "a.b"])
names = st.sampled_from(NAMES)
numbers = st.integers(1, 64)


@st.composite
def values(draw: st.DrawFn) -> str:
    """Return the text of a value in an assignment or command."""
    name, word, other, number = draw(names), draw(words), draw(plain), draw(numbers)
    return draw(
        st.sampled_from(
            [
                f"'{word}'",
                f'"{word}"',
                other,
                f'"{other}-${name}"',
                f"${{{name}:-{other}}}",
                f'"${{{name}:+{other}}}"',
                f"${{{name}-{other}}}",
                f'"${{{name}%b*}}"',
                f'"${{{name}##*/}}"',
                f'"${{{name}/b/{other}}}"',
                f'"${{{name}//[ab]/_}}"',
                f'"${{{name}^^}}"',
                f'"${{{name},,}}"',
                f'"${{#{name}}}"',
                f'"${{{name}:1:2}}"',
                f"$(({number} * 2 + {number} / 3))",
                f"$(( ({number} + 1) % 5 ))",
                f"$(echo {other} {other})",
                f'"$(basename org/{other})"',
                f"`echo {other}`",
                "$(echo 0,1,2 | tr ',' ' ' | wc -w)",
                f"$(expr {number} + 1)",
                f"$(printf '%s-%s' {other} {number})",
                f'"\\${other}"',
                f"{other}\\ {other}",
                f"$'{other}'",
                f"${{{name}:={other}}}",
            ]
        )
    )


@st.composite
def commands(draw: st.DrawFn, depth: int = 0) -> str:
    """Return one command of a script."""
    name, value, other = draw(names), draw(values()), draw(values())
    number, word = draw(numbers), draw(plain)
    simple = [
        f"{name}={value}",
        f"export {name}={value}",
        f"{name}+={value}",
        f"{name}=({value} {other})",
        f"((N = {number} * 3))",
        f"{name}=$((N + 1))",
        f': "${{{name}:={word}}}"',
        f"unset {name}",
        f"set -- {value} {other}",
        f'read -r {name} <<< "{word} {word}"',
        f'{name}=("${{{name}[@]}}" {value})',
        f"declare -A MAP_{name}=([{word}]={number} [z]=1); {name}=${{MAP_{name}[{word}]}}",
    ]
    if depth > 1:
        return draw(st.sampled_from(simple))
    body = draw(commands(depth=depth + 1))
    another = draw(commands(depth=depth + 1))
    compound = [
        f'if [ -n "${name}" ]; then\n  {body}\nelse\n  {another}\nfi',
        f'if [[ "${name}" == {word}* ]]; then\n  {body}\nfi',
        f"if [ {number} -gt 8 ] && [ ! -z '{word}' ]; then {body}; else {another}; fi",
        f"[[ -z ${name} ]] && {name}={word}",
        f'[ "${name}" = "{word}" ] || {name}={value}',
        f'case "${name}" in\n  {word}|x) {body} ;;\n  *) {another} ;;\nesac',
        f"for {name} in {value} {word}; do\n  {body}\ndone",
        f"run_{name}() {{ local P=$1; {body}; }}\nrun_{name} {value}",
        f"{{ {body}; }}",
        f":  # {name}=comment\n{body}",
    ]
    return draw(st.sampled_from(simple + compound))


@st.composite
def scripts(draw: st.DrawFn) -> str:
    lines = draw(st.lists(commands(), min_size=1, max_size=6))
    arguments = draw(st.lists(values(), max_size=4))
    ending = ' \\\n  "${A}" $B "${LIST[@]}" "$@" ${GPUS:-1}'
    return START + "\n".join(lines) + f"\n{PROGRAM} {' '.join(arguments)}{ending}\n"


def printed(script: str, folder: Path) -> list[str]:
    """Return the arguments that bash passes to the program."""
    program = folder / PROGRAM
    if not program.exists():
        program.write_text('#!/bin/bash\nprintf "%s\\0" "$@" >> "$WORDS"\n')
        program.chmod(0o755)
    output = folder / "words"
    output.write_bytes(b"")
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "WORDS": str(output)}
    command = [str(BASH), "-f", "-c", script]
    subprocess.run(command, env=environment, cwd=folder, capture_output=True, timeout=20)
    return output.read_text().split("\0")[:-1]


@settings(max_examples=120, deadline=None)
@given(script=scripts())
def test_words_are_those_of_bash(script: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    followed = commands_of(script, "train.sh", lambda _: None)
    found = [each for each in followed.commands if each.words[0].text == PROGRAM]
    assert len(found) == 1
    known = [word for word in found[0].words[1:] if word.is_known]
    expected = printed(script, folder)
    if len(known) == len(found[0].words) - 1:
        assert [word.text for word in known] == expected
