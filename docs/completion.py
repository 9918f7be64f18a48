#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""completion.py ATTEST FILE - writes the bash completion of attest from its --help texts.

Invariant: like man.py, it names no verb, option or value itself.
"""
import re
import sys

sys.dont_write_bytecode = True  # the source tree stays clean
import man  # noqa: E402

SCRIPT = """\
# Completion of attest for bash; written by docs/completion.py from `attest --help`.
_attest() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]}
    local choices=
    if [ "$COMP_CWORD" -eq 1 ] || [ "$verb" = help ]; then
        COMPREPLY=($(compgen -W "@VERBS@ help version --help --version" -- "$word"))
        return
    fi
    case $verb$before in
@VALUES@
    *--device) choices="cpu cuda vgpu" ;;
    esac
    if [ -z "$choices" ] && [ "${word#-}" != "$word" ]; then
        case $verb in
@OPTIONS@
        esac
    fi
    # Anything else is a file; bash's own completion of those (complete -o default).
    COMPREPLY=($(compgen -W "$choices" -- "$word"))
}
complete -o default -F _attest attest
"""


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.split("\n\n", maxsplit=1)[0])
    attest = sys.argv[1]
    verbs = re.findall(r"^  (\w+) +\S", man.help_of(attest).split("\n\n")[2], re.M)
    options, values = [], []
    for verb in verbs:
        found = re.findall(r"^  (?:-\w, )?(--[\w-]+)(?: (\S+))?", man.help_of(attest, verb), re.M)
        options.append(f'        {verb}) choices="{" ".join(name for name, _ in found)} --help" ;;')
        values += [f'    {verb}{name}) choices="{value.replace("|", " ")}" ;;'
                   for name, value in found if re.fullmatch(r"[a-z0-9-]+(\|[a-z0-9-]+)+", value)]
    text = SCRIPT.replace("@VERBS@", " ".join(verbs))
    text = text.replace("@VALUES@", "\n".join(values)).replace("@OPTIONS@", "\n".join(options))
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
