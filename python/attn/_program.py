# SPDX-License-Identifier: Apache-2.0
"""The program attest of the wheel: replaces this process, so that its exit code and signals are its
own. It finds the peers runner of the same environment by $ATTN_PEERS."""

import os
import sys
from pathlib import Path


def main() -> None:
    program = Path(__file__).resolve().parent / "bin" / "attest"
    peers = Path(sys.argv[0]).resolve().with_name("attn-peers")
    if peers.is_file():
        os.environ.setdefault("ATTN_PEERS", str(peers))
    try:
        os.execv(str(program), ["attest", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"attest: {program} cannot be run: {error.strerror}")
