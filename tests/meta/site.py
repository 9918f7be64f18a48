# SPDX-License-Identifier: Apache-2.0
"""site.py - opens pages of the documentation site in headless Chromium (browser.py).

    site.py FOLDER    FOLDER/site as `make docs` wrote it; screenshots go to FOLDER/*.png

Nothing may be thrown or requested but files of the site; no page may overflow the window, wide or
narrow. The charts of the benchmarks must have a bar for each row of their tables, and the filter
must leave the rows with its words. Exit code 0 if all of that holds.

Invariant: a page that was not loaded, or a browser that does not answer, is a failure.
"""
import os
import shutil
import sys

from browser import NAMES, Browser

WIDTHS = (1280, 390)
PAGES = ("index", "getting-started", "api", "benchmarks", "lab/index", "examples/serve-c")
WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# [charts, bars, rows of their tables, bars after the filter, rows with its word]
CHARTS = """(() => {
  const tables = [...document.querySelectorAll('table')].filter(t =>
    t.tHead && ['problem', 'libattn', 'ratio'].every(word => t.tHead.innerText.includes(word)));
  const rows = word => tables.reduce((sum, t) => sum + [...t.tBodies[0].rows].filter(r =>
    parseFloat(r.cells[r.cells.length - 1].textContent) > 0 &&
    (!word || r.cells[0].textContent.trim().split(' ').includes(word))).length, 0);
  const bars = () => document.querySelectorAll('.chart rect').length;
  const before = bars();
  document.querySelectorAll('.chart input').forEach(i => {
    i.value = 'causal'; i.dispatchEvent(new Event('input')); });
  return [tables.length, before, rows(''), bars(), rows('causal')];
})()"""


def evaluate(browser, expression):
    answer = browser.call("Runtime.evaluate", expression=expression, returnByValue=True)
    if "exceptionDetails" in answer:
        raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", "?"))
    return answer["result"]["value"]


def check(browser, folder, page):
    site = "file://" + os.path.join(folder, "site") + "/"
    browser.open(site + page + ".html")
    faults = []
    for width in WIDTHS:
        browser.view(width, "light")
        over = evaluate(browser, WIDE)
        if over > 0:
            faults.append(f"{over} pixels run out of a window of {width}")
        browser.shoot(f"{folder}/{page.replace('/', '-')}-{width}.png", width, 1800)
    if page == "benchmarks":
        charts, bars, rows, filtered, wanted = evaluate(browser, CHARTS)
        if charts < 5 or bars != rows or filtered != wanted or not 0 < filtered < bars:
            faults.append(f"{charts} charts with {bars} bars for {rows} rows; "
                          f"{filtered} bars after the filter, {wanted} rows")
    own = ("request: " + site, "request: data:")
    faults += [noise for noise in browser.noise() if not noise.startswith(own)]
    for fault in faults:
        print(f"FAIL {page}: {fault}")
    return not faults


def main(folder):
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        print("FAIL no chromium: make deps installs it")
        return 1
    browser = Browser(program)
    try:
        passed = all([check(browser, folder, page) for page in PAGES])
        print(f"{'ok  ' if passed else 'FAIL'} {len(PAGES)} pages of the site")
        return 0 if passed else 1
    except RuntimeError as error:
        print("FAIL", error)
        return 1
    finally:
        browser.close()


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1])))
