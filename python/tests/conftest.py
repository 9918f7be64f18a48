# SPDX-License-Identifier: Apache-2.0
"""What every test of the package needs: a library that loads, or a failure that says why."""

import attn


def pytest_report_header():
    return f"libattn {attn.version()} from {attn.library_path()}"
