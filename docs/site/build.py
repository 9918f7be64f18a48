# SPDX-License-Identifier: Apache-2.0
"""build.py - the documentation as one static site (`make docs`).

    build.py OUTPUT    writes OUTPUT/site from the pages of the tree; needs mkdocs-material

Pages are staged in OUTPUT/pages: README.md is the front page, docs/ and its lab logs follow, and
each example becomes a page. Links between them are rewritten; a link to a file that is no page
(a source, a folder of results) becomes its path as text.

Invariant: the site requests nothing from a network, and a link to a missing page or heading is an
error (mkdocs --strict).
"""
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HERE = ROOT / "docs" / "site"
LANGUAGES = {".c": "c", ".cpp": "cpp", ".py": "python", ".rs": "rust", ".toml": "toml"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"(```.*?```|`[^`\n]*`)", re.S)


def page_names():
    """Path in the tree -> path in the site, of everything that is shown."""
    names = {"README.md": "index.md", "CHANGELOG.md": "changelog.md",
             "CONTRIBUTING.md": "contribute.md", "python/README.md": "python.md",
             "results/README.md": "results/index.md", "docs/README.md": "pages.md",
             "docs/evidence.schema.json": "evidence.schema.json"}
    for path in sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "docs/lab").glob("*.md")):
        name = path.relative_to(ROOT).as_posix()
        names.setdefault(name, name[len("docs/"):])
    for path in sorted((ROOT / "results").glob("*.svg")):
        names[path.relative_to(ROOT).as_posix()] = path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.suffix in LANGUAGES:
            name = path.relative_to(ROOT).as_posix()
            names[name] = name.replace(".", "-") + ".md"
    return names


def rewritten(text, source, names):
    """The page with links as they are in the site."""
    here = posixpath.dirname(names[source])
    folders = {"docs/lab": "lab/index.md", "results": "results/index.md",
               "examples/rust": names["examples/rust/src/main.rs"]}

    def link(match):
        image, label, target, heading = match.groups()
        if not target or ":" in target:
            return match.group(0)
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        page = names.get(path) or folders.get(path)
        if page is None:
            if not (ROOT / path).exists():
                raise SystemExit(f"{source}: a link to {target}, which does not exist")
            return f"`{path}`"
        return f"{image}[{label}]({posixpath.relpath(page, here or '.')}{heading or ''})"

    parts = FENCE.split(text)
    return "".join(part if i % 2 else LINK.sub(link, part) for i, part in enumerate(parts))


def stage(pages):
    names = page_names()
    for source, name in names.items():
        target = pages / name
        target.parent.mkdir(parents=True, exist_ok=True)
        path = ROOT / source
        if path.suffix == ".md":
            target.write_text(rewritten(path.read_text(), source, names))
        elif path.suffix in LANGUAGES:
            target.write_text(f"# {source}\n\n```{LANGUAGES[path.suffix]}\n{path.read_text()}```\n")
        else:
            shutil.copy(path, target)
    logs = sorted(name for name in names.values() if name.startswith("lab/"))
    listed = []
    for name in reversed(logs):
        title = (pages / name).read_text().splitlines()[0].lstrip("# ")
        listed.append(f"- [{title}]({posixpath.basename(name)})\n")
    (pages / "lab/index.md").write_text(
        "# Lab logs\n\nPredictions, measurements, outcomes; the newest first.\n\n" + "".join(listed))
    for name in ("chart.js", "chart.css"):
        shutil.copy(HERE / name, pages / name)


def main():
    output = pathlib.Path(sys.argv[1]).resolve()
    pages = output / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    stage(pages)
    shutil.copy(HERE / "mkdocs.yml", output / "mkdocs.yml")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet",
                    "--config-file", str(output / "mkdocs.yml")], check=True,
                   env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    count = len(list((output / "site").rglob("*.html")))
    print(f"docs: {count} pages in {output / 'site'}; open index.html there")


if __name__ == "__main__":
    main()
