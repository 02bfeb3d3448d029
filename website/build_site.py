"""Build the documentation site, with the page that checks configs, in runs/site/public.

python website/build_site.py

The page that checks configs needs packages of npm and of PyPI: those of package-lock.json and
wheels.txt, whose hashes are verified.
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pages

WORK = pages.ROOT / "runs" / "site"
PUBLIC = WORK / "public"
OWN = Path(__file__).parent
PYODIDE = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
)
PLATFORMS = ("pyemscripten_2026_0_wasm32", "manylinux2014_x86_64")
"""Of pydantic-core, and of PyYAML, whose compiled part is left out."""
UNUSED = (
    "dsconfig/commands/",
    "dsconfig/report/rules/",
    "dsconfig/editor/protocol.py",
    "dsconfig/editor/server.py",
    "pydantic/v1/",
    "pydantic/mypy.py",
)
"""Files of the packages that the page does not import."""


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


def build_check() -> None:
    """Build the page that runs dsconfig in the browser, with everything that it loads."""
    check = PUBLIC / "check"
    shutil.rmtree(check, ignore_errors=True)
    shutil.copytree(OWN / "check", check)
    (check / "pyodide").mkdir()
    for name in PYODIDE:
        shutil.copy(installed(OWN) / "pyodide" / name, check / "pyodide")
    with zipfile.ZipFile(
        check / "packages.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9
    ) as archive:
        for wheel in sorted(wheels().glob("*.whl")):
            with zipfile.ZipFile(wheel) as each:
                for name in each.namelist():
                    add(archive, name, each.read(name))
        for path in sorted((pages.ROOT / "dsconfig").rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                add(archive, path.relative_to(pages.ROOT).as_posix(), path.read_bytes())


def add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a file that the page needs, with the same bytes in every build."""
    compiled = name.endswith(".so") and "wasm32" not in name
    if name.endswith("/") or name.startswith(UNUSED) or ".dist-info/" in name or compiled:
        return
    if name.endswith((".py", ".json", ".html", ".so")):
        archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, compresslevel=9)


def installed(source: Path) -> Path:
    """Install the packages of a folder's package-lock.json and return their node_modules."""
    folder = WORK.parent / "node" / source.name
    folder.mkdir(parents=True, exist_ok=True)
    locked, done = source / "package-lock.json", folder / "installed"
    if not done.exists() or done.read_text("utf-8") != locked.read_text("utf-8"):
        shutil.rmtree(folder / "node_modules", ignore_errors=True)
        for path in (source / "package.json", locked):
            shutil.copy(path, folder)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(["npm", "ci", *options], check=True, cwd=folder)
        shutil.copy(locked, done)
    return folder / "node_modules"


def wheels() -> Path:
    """Download the wheels of wheels.txt, verify their hashes and return their folder."""
    folder = WORK / "wheels"
    done = folder / "wheels.txt"
    wanted = (OWN / "wheels.txt").read_text("utf-8")
    if done.exists() and done.read_text("utf-8") == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--quiet"]
    options += [f"--platform={name}" for name in PLATFORMS]
    options += ["--python-version=3.14", "--implementation=cp", "--abi=cp314", "--abi=none"]
    command = [sys.executable, "-m", "pip", "download", *options]
    subprocess.run([*command, "-r", OWN / "wheels.txt", "--dest", folder], check=True)
    done.write_text(wanted, "utf-8")
    return folder


if __name__ == "__main__":
    build_pages()
    build_check()
