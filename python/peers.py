# SPDX-License-Identifier: Apache-2.0
"""python -m attn.peers, from a checkout and without PYTHONPATH."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent)
from attn.peers.program import main  # noqa: E402

sys.exit(main())
