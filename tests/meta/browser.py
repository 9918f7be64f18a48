# SPDX-License-Identifier: Apache-2.0
"""browser.py - opens pages in headless Chromium and looks at them as a reader would.

    browser.py FOLDER PAGE...   FOLDER/PAGE.html of each; screenshots go to FOLDER/PAGE-*.png

Nothing may be logged, thrown or requested; the plots must be there and have an extent; nothing may
overflow the window, wide or narrow; text must contrast with its background, in light and in dark
mode. Folded parts are unfolded for that, but not in the screenshots. Exit code 0 if all of that
holds, 1 if not, 4 if the check itself does not work: a page with each of these faults planted is
opened first and must be refused for each.

Invariant: a page that was not loaded, or a browser that does not answer, is a failure.
"""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

SECONDS = 60
WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
NAMES = ("chromium", "chromium-browser", "google-chrome")

# What a page has; run inside of it, which its policy does not forbid to a debugger.
LOOK = """(() => {
  const shown = e => { const b = e.getBoundingClientRect(); return b.width > 0 && b.height > 0; };
  const all = s => [...document.querySelectorAll(s)];
  const rgb = c => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const light = c => { const f = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * f(c[0]) + 0.7152 * f(c[1]) + 0.0722 * f(c[2]); };
  const background = e => { for (; e; e = e.parentElement) {
    const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] > 0.99) return c; } return [255, 255, 255, 1]; };
  const folded = all('details:not([open])');
  folded.forEach(e => { e.open = true; });
  const faint = all('main p, main td, main th, main li, main dd, main dt, .chip, figcaption span, h2, a').filter(e => {
    if (!shown(e) || !e.textContent.trim()) return false;
    const a = light(rgb(getComputedStyle(e).color)), b = light(background(e));
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5; });
  const seen = {
    title: document.title,
    scripts: all('script, img, iframe, object, embed, link, form').length,
    handlers: all('*').filter(e => [...e.attributes].some(a => a.name.startsWith('on'))).length,
    plots: all('figure.plot svg').filter(shown).length,
    points: all('figure.plot svg .point').filter(shown).length,
    lines: all('figure.plot svg .line').filter(e => e.getTotalLength() > 0).length,
    unnamed: all('svg').filter(e => !e.getAttribute('aria-label')).length +
      all('table').filter(e => !e.caption).length,
    verdict: (document.querySelector('.word') || {innerText: ''}).innerText.replace(/\\s+/g, ' '),
    green: all('.verdict.g-pass').length,
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    faint: faint.slice(0, 3).map(e => e.tagName + ' ' + e.textContent.trim().slice(0, 40)),
    background: getComputedStyle(document.body).backgroundColor,
  };
  folded.forEach(e => { e.open = false; });
  seen.height = Math.ceil(document.documentElement.scrollHeight);
  return seen;
})()"""

PLANTED = """<!DOCTYPE html><html><head><title>planted</title></head><body style="background:#fff">
<main><p style="color:#eee">faint</p><div style="width:3000px;height:9px"></div><svg></svg>
<img src="https://nowhere.invalid/x.png" onload="x()">
<script>console.error('planted'); missing();</script></main></body></html>"""


class Browser:
    """Chromium, spoken to through a pipe: a JSON text and a zero byte for each message."""

    def __init__(self, program):
        self.folder = tempfile.mkdtemp(prefix="attest-browser-")
        to_child, self.out = os.pipe()
        self.inp, from_child = os.pipe()
        self.log = open(os.path.join(self.folder, "log"), "wb")
        command = [program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
                   "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
                   "--user-data-dir=" + self.folder]
        # The pipe is 3 and 4 in the child; dup2 through high numbers, in case ours are these.
        script = f"exec 3<&{to_child} 4>&{from_child}; exec \"$@\""
        self.child = subprocess.Popen(["sh", "-c", script, "sh"] + command, stdout=self.log, stderr=self.log,
                                      pass_fds=(to_child, from_child))
        os.close(to_child)
        os.close(from_child)
        os.set_blocking(self.inp, False)
        self.rest, self.count, self.events, self.session = b"", 0, [], None

    def receive(self, until):
        while b"\0" not in self.rest:
            if time.monotonic() > until:
                raise RuntimeError("the browser does not answer")
            try:
                part = os.read(self.inp, 1 << 20)
            except BlockingIOError:
                time.sleep(0.005)
                continue
            if not part:
                raise RuntimeError("the browser ended")
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + SECONDS
        while True:
            answer = self.receive(until)
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method):
        until = time.monotonic() + SECONDS
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.receive(until))

    def open(self, url):
        """A new tab with the page, loaded."""
        self.session, self.events = None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.events = []
        answer = self.call("Page.navigate", url=url)
        if answer.get("errorText"):
            raise RuntimeError(f"{url}: {answer['errorText']}")
        self.wait_for("Page.loadEventFired")

    def view(self, width, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    def look(self):
        answer = self.call("Runtime.evaluate", expression=LOOK, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError("the page cannot be looked at: " +
                               answer["exceptionDetails"]["exception"].get("description", "?"))
        return answer["result"]["value"]

    def shoot(self, path, width, height):
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, 6000), "scale": 1}
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        with open(path, "wb") as out:
            out.write(base64.b64decode(image["data"]))

    def noise(self):
        """What was logged, thrown, or requested beside the page itself."""
        found = []
        for event in self.events:
            method, said = event.get("method"), event.get("params", {})
            if method == "Runtime.consoleAPICalled":
                found.append("console: " + str(said["args"][:1]))
            elif method == "Runtime.exceptionThrown":
                found.append("exception: " + said["exceptionDetails"]["text"])
            elif method == "Log.entryAdded":
                found.append("log: " + said["entry"]["text"])
            elif method == "Network.requestWillBeSent" and said.get("type") != "Document":
                found.append("request: " + said["request"]["url"])
        return found

    def close(self):
        self.child.terminate()
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def faults_of(browser, url, shots=None):
    """All that is wrong with a page, as sentences; and what it looked like first."""
    browser.open(url)
    faults, first, backgrounds = [], None, set()
    for width in WIDTHS:
        for scheme in SCHEMES:
            browser.view(width, scheme)
            seen = browser.look()
            first = first or seen
            backgrounds.add((scheme, seen["background"]))
            where = f"{width} pixels, {scheme}"
            if seen["wide"] > 0:
                faults.append(f"wide: {where}: {seen['wide']} pixels run out of the window")
            if seen["faint"]:
                faults.append(f"faint: {where}: {seen['faint']}")
            if shots:
                browser.shoot(f"{shots}-{width}-{scheme}.png", width, seen["height"])
    for key in ("scripts", "handlers", "unnamed"):
        if first[key]:
            faults.append(f"{key}: {first[key]}")
    if len({color for _, color in backgrounds}) < 2:
        faults.append("scheme: dark looks like light")
    return faults + browser.noise(), first


def check_control(browser, folder):
    """Each fault of the planted page is found; returns those that are not."""
    path = os.path.join(folder, "planted.html")
    with open(path, "w", encoding="utf-8") as out:
        out.write(PLANTED)
    faults, seen = faults_of(browser, "file://" + path)
    os.unlink(path)
    wanted = ("wide:", "faint:", "scripts:", "handlers:", "unnamed:", "scheme:", "console:", "exception:", "request:")
    return [word for word in wanted if not any(fault.startswith(word) for fault in faults)] + \
        (["plots"] if seen["plots"] or seen["points"] else [])


# What the page of each kind of pack must show at least: plots, points; and its verdict.
EXPECTED = {
    "full": (2, 12, "PASS"),
    "partial": (1, 6, "PASS (partial)"),
    "failing": (2, 12, "INVALID"),
    "hostile": (1, 6, None),
    "large": (2, 12, "PASS"),
}


def check_page(browser, folder, name):
    path = os.path.join(folder, name + ".html")
    faults, seen = faults_of(browser, "file://" + path, os.path.join(folder, name))
    kind = name.rsplit("-", 1)[-1]
    plots, points, verdict = EXPECTED.get(kind, (1, 1, None))
    for key, least in (("plots", plots), ("points", points), ("lines", plots)):
        if seen[key] < least:
            faults.append(f"{key}: {seen[key]}, expected at least {least}")
    if verdict is not None and seen["verdict"] != verdict:
        faults.append(f"verdict: {seen['verdict']!r}, expected {verdict!r}")
    if seen["green"] and verdict != "PASS":
        faults.append("verdict: green, and not PASS of the whole")
    if seen["title"] == "owned":
        faults.append("title: a text of the pack became a script")
    for fault in faults:
        print(f"FAIL {name}: {fault}")
    print(f"{'FAIL' if faults else 'ok  '} {name}: {seen['plots']} plots, {seen['points']} points, "
          f"{os.path.getsize(path)} bytes")
    return not faults


def main(folder, names):
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        print("FAIL no chromium: make deps installs it")
        return 1
    browser = Browser(program)
    try:
        missed = check_control(browser, folder)
        if missed:
            print("INVALID: not found in a page with these faults:", *missed)
            return 4
        return 0 if all([check_page(browser, folder, name) for name in names]) else 1
    except RuntimeError as error:
        print("FAIL", error)
        return 1
    finally:
        browser.close()


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1]), sys.argv[2:]))
