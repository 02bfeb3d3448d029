"""Build the documentation site in runs/site/public.

python website/build.py [pages]
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pages

WORK = pages.ROOT / "runs" / "site"
PUBLIC = WORK / "public"


def build_pages() -> None:
    """Build the site of every language; a warning is an error."""
    shutil.rmtree(PUBLIC, ignore_errors=True)
    for language in pages.LANGUAGES:
        pages.stage(language, WORK / language.code)
        config = WORK / f"{language.code}.toml"
        target = f"{PUBLIC.name}/{language.folder}"
        config.write_text(pages.settings(language, language.code, target), "utf-8")
        command = [Path(sys.executable).with_name("zensical"), "build", "--strict", "--clean"]
        subprocess.run([*command, "--config-file", config], check=True, cwd=WORK)


if __name__ == "__main__":
    build_pages()
