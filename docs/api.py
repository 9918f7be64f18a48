#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""api.py - writes docs/api.md from the comments of the public headers.

    python3 docs/api.py            rewrite docs/api.md
    python3 docs/api.py --check    exit 1 and print a diff if it is not what this would write

read() cuts a header into parts; docs/man.py makes attn(3) of the same parts.

Invariant: every declaration of the headers is in the output, and no sentence that is not in one.
"""
import argparse
import difflib
import pathlib
import re
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = ("attn.h", "attn_inspect.h", "attn_verify.h", "attn_mpi.h")
BOILERPLATE = re.compile(r"#ifdef __cplusplus\n.*?#endif\n|^#if.*?^#endif[^\n]*\n|^#include.*?\n|"
                         r"^#ifndef ATTN_\w+_?H\n#define ATTN_\w+_?H\n|^#endif[^\n]*\n", re.S | re.M)


class Part(NamedTuple):
    """A section (title alone), or declarations (code) with the comment above them (text)."""
    title: str
    text: str
    code: str

    def names(self):
        """What is declared: functions, types or macros."""
        if self.code.startswith("#define"):
            return re.findall(r"^#define (\w+)", self.code, re.M)
        if self.code.startswith("typedef"):
            return re.findall(r"(\w+);$", self.code, re.M)[-1:]
        return re.findall(r"\b(attn_\w+)\(", self.code)


def plain(comment):
    """The text of a comment, its inner indentation kept."""
    lines = re.sub(r"^/\* ?|\s*\*/$", "", comment.strip()).split("\n")
    return "\n".join(re.sub(r"^ \* ?", "", line) for line in lines).strip("\n")


def chunks(text):
    """What blank lines part, but for those inside braces."""
    chunk = []
    for line in text.split("\n") + [""]:
        whole = "\n".join(chunk)
        if line or whole.count("{") != whole.count("}"):
            chunk.append(line)
        elif chunk:
            yield whole
            chunk = []


def read(name):
    """The head of a header without its licence line, and its parts."""
    source = (ROOT / "include" / name).read_text(encoding="utf-8")
    end = source.index("*/") + 2
    head = re.sub(r"^SPDX.*\n\s*", "", plain(source[:end]))
    body = source[end:]
    guard = re.search(r"#ifndef (\w+)\n#define \1\n", body)
    body = BOILERPLATE.sub("", body[guard.end():])
    parts = []
    for chunk in chunks(body):
        section = re.fullmatch(r"/\* -+ (.*?) -+ \*/", chunk)
        comment = re.match(r"/\*.*?\*/\n?", chunk, re.S)
        text, code = ("", chunk) if not comment else (plain(comment[0]), chunk[comment.end():])
        if section:
            parts.append(Part(section[1], "", ""))
        else:
            code = re.sub(r"^ATTN_API ", "", code, flags=re.M)
            code = re.sub(r"^(static inline .*?) {\n.*?^}", r"\1;", code, flags=re.S | re.M)
            parts.append(Part("", text, re.sub(r"\n {17,}(?=\w.*?[,)])", "\n    ", code)
                              if not code.startswith(("typedef", "#")) else code))
    return head, parts


def fenced(text, kind="text"):
    return ["", f"```{kind}", text, "```"]


def page():
    out = ["# API", "", "<!-- Written by docs/api.py from include/*.h: edit the headers. -->", ""]
    out += [f"- [{name}](#{name.replace('.', '')})" for name in HEADERS]
    for name in HEADERS:
        head, parts = read(name)
        out += ["", f"## {name}"] + fenced(head)
        for part in parts:
            if part.title:
                out += ["", f"### {part.title[0].upper()}{part.title[1:]}"]
                continue
            out += ["", "#### " + ", ".join(part.names())]
            if re.search(r"^ ", part.text, re.M):  # formulas and lists
                out += fenced(part.text)
            elif part.text:
                out += ["", part.text.replace("<", "&lt;")]
            out += fenced(part.code, "c")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on a diff")
    options = parser.parse_args()
    path, new = ROOT / "docs" / "api.md", page()
    if not options.check:
        path.write_text(new, encoding="utf-8")
        return 0
    old = path.read_text(encoding="utf-8")
    sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True),
                                               "docs/api.md", "docs/api.md, by api.py"))
    return 0 if new == old else 1


if __name__ == "__main__":
    sys.exit(main())
