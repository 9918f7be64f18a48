# SPDX-License-Identifier: Apache-2.0
"""python -m attn.peers"""

import sys

from .program import main

sys.exit(main())
