# SPDX-License-Identifier: Apache-2.0
"""What every test of the package needs: a library that loads, or a failure that says why; and no
unexpected skip (--expect-skips)."""

import re

import attn
import pytest

skipped = []


@pytest.fixture
def undisturbed():
    """What the runner of the peers sets for its process is given back."""
    import torch
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    yield
    torch.set_num_threads(threads)
    torch.set_grad_enabled(grad)


def pytest_addoption(parser):
    parser.addoption("--expect-skips", metavar="REGEX", default="",
                     help="fail if something is skipped for a reason without it")


def pytest_report_header():
    return f"libattn {attn.version()} from {attn.library_path()}"


def note(report):
    if report.skipped and isinstance(report.longrepr, tuple):
        skipped.append((report.nodeid, report.longrepr[2]))


pytest_runtest_logreport = pytest_collectreport = note


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    expected = session.config.getoption("--expect-skips")
    unexpected = [one for one in skipped if not re.search(expected, one[1])]
    for name, reason in unexpected:
        print(f"\nan unexpected skip: {name}: {reason}")
    if unexpected and exitstatus == 0:
        session.exitstatus = 1
