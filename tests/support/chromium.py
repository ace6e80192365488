"""Pages as headless Chromium shows them, for tests of them."""
import html
import json
import re
import subprocess

SECONDS = 180


def chromium(program, page, *options):
    """What it prints. Its profile lies beside the page."""
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
               "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={page.parent}/profile", "--virtual-time-budget=5000",
               "--enable-logging=stderr", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


def scheme(dark):
    return f"--blink-settings=preferredColorScheme={0 if dark else 1}"


def found_by_probe(dom):
    """What a script in the page has put into an element of its own as JSON; None where it has not come to that."""
    match = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)
    return json.loads(html.unescape(match[1])) if match else None


def screenshot(program, page, target, dark, size="1320,1400"):
    """A PNG, as bytes."""
    target.unlink(missing_ok=True)
    chromium(program, page, f"--screenshot={target}", f"--window-size={size}", scheme(dark))
    return target.read_bytes()
