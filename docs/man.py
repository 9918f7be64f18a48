#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""man.py ATTEST FOLDER - writes FOLDER/attest.1 from the program's --help texts, and FOLDER/attn.3
from the comments of the public headers.

Invariant: no text of its own but the headings; a page says what the program and the headers say.
"""
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree stays clean
import api  # noqa: E402

OPTION = re.compile(r"  (-\S.*?)(?:\s{2,}(\S.*))?$")


def escape(text):
    """Text that roff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def verbatim(text):
    return [".PP", ".EX", escape(text), ".EE"]


def version():
    numbers = re.findall(r"#define ATTN_VERSION_M?\w+ (\d+)",
                         (api.ROOT / "include" / "attn.h").read_text(encoding="utf-8"))
    return ".".join(numbers)


# ---- attest(1) ----------------------------------------------------------------------------------


def help_of(attest, *verb):
    return subprocess.run([attest, *verb, "--help"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def paragraphs(text):
    """Options become .TP, other indented lines stay as they are, prose is filled."""
    out = []
    for block in text.strip("\n").split("\n\n"):
        lines = block.split("\n")
        if len(lines) > 1 and lines[1].startswith("  ") and not lines[0].startswith(" "):
            out += [".PP", f".B {escape(lines.pop(0))}"]
        if not lines[0].startswith(" "):
            out += [".PP", escape(" ".join(lines))]
        elif not OPTION.match(lines[0]):
            out += verbatim("\n".join(lines))
        else:
            for line in lines:
                option = OPTION.match(line)
                out += [".TP", f".B {escape(option[1])}"] if option else []
                out += [escape(option[2] or "") if option else escape(line.strip())]
    return [line for line in out if line]


def attest_page(attest):
    title, *rest = help_of(attest).split("\n\n")
    verbs = re.findall(r"^  (\w+) +\S", rest[1], re.M)
    name, summary = title.split(" - ", 1)
    out = [f'.TH ATTEST 1 "" "attest {version()}"', ".SH NAME", f"{name} \\- {escape(summary)}",
           ".SH SYNOPSIS", escape(rest[0].replace("usage: ", "")), ".SH VERBS"]
    out += paragraphs("\n\n".join(rest[1:]))
    for verb in verbs:
        head, usage, *body = help_of(attest, verb).split("\n\n")
        out += [f".SH ATTEST {verb.upper()}", escape(head.split(" - ", 1)[1])]
        out += verbatim(usage.replace("usage: ", "")) + paragraphs("\n\n".join(body))
    return "\n".join(out + [".SH SEE ALSO", ".BR attn (3)", ""])


# ---- attn(3) ------------------------------------------------------------------------------------


def described(text):
    """A comment: filled, unless it has formulas or lists."""
    if re.search(r"^ ", text, re.M):
        return verbatim(text)
    return [".PP", escape(text)] if text else []


def attn_page():
    out = [f'.TH ATTN 3 "" "libattn {version()}"', ".SH NAME"]
    for i, header in enumerate(api.HEADERS):
        head, parts = api.read(header)
        first, _, rest = head.partition("\n\n")
        summary = re.sub(r"\s+", " ", first.split(" - ", 1)[1])
        if i == 0:
            out += [f"attn \\- {escape(summary)}", ".SH SYNOPSIS", ".EX"]
            out += [f"#include <{name}>" for name in api.HEADERS] + [".EE"]
        out += [f".SH {escape(header.upper())}", escape(summary)] + described(rest)
        for part in parts:
            if part.title:
                out += [f".SH {escape(part.title.upper())}"]
            else:
                out += [f".SS {escape(', '.join(part.names()))}"] + verbatim(part.code)
                out += described(part.text)
    return "\n".join(out + [".SH SEE ALSO", ".BR attest (1)", ""])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.split("\n\n", maxsplit=1)[0])
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "attest.1").write_text(attest_page(sys.argv[1]), encoding="utf-8")
    (folder / "attn.3").write_text(attn_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
