"""The page of a plan as a browser shows it.   plan_page_test.py PATH/TO/lockstep PATH/TO/chromium [FOLDER]

Opens pages of `lockstep plan --html` in headless Chromium, light and dark: nothing is written to the console, nothing is fetched, the facts
are there as text, no text runs out of its picture, and keys and buttons do what they say. With a FOLDER the screenshots stay there.
"""
import html
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))
from chromium import chromium, found_by_probe, scheme, screenshot

LOCKSTEP, CHROMIUM, KEPT = "", "", None
MOST_BYTES = 400_000

# Runs in the page: presses its keys and buttons and says what it looks like then, as JSON in an element of its own.
PROBE = """<script>
const errors = [];
addEventListener('error', event => errors.push(event.message));
addEventListener('securitypolicyviolation', event => errors.push('fetched: ' + event.blockedURI));
addEventListener('load', () => {
  const found = {outside: [], texts: 0, svgs: 0, colour: getComputedStyle(document.body).backgroundColor};
  found.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  for (const svg of document.querySelectorAll('svg[role=img]')) {
    ++found.svgs;
    const frame = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll('text')) {
      const box = text.getBoundingClientRect();
      if (!box.width) continue;
      ++found.texts;
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        found.outside.push(text.textContent);
    }
  }
  found.empty = [...document.querySelectorAll('section')].filter(section => section.textContent.trim().length < 120).map(section => section.id);
  found.sections = [...document.querySelectorAll('section')].map(section => section.id);
  found.lost = [...document.querySelectorAll('nav a')].filter(link => !document.querySelector(link.getAttribute('href'))).length;
  // What is over the middle of an element is told.
  found.unheard = [];
  for (const box of document.querySelectorAll('[data-pick]')) {
    const item = box.querySelector('[data-t]'), told = document.getElementById(box.dataset.pick);
    item.dispatchEvent(new PointerEvent('pointerenter'));
    if (!told.textContent.startsWith(item.dataset.t)) found.unheard.push(box.dataset.pick);
  }
  const press = (element, key) => element.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
  found.told = {};
  for (const box of document.querySelectorAll('[data-pick]')) {
    press(box.querySelector('svg'), 'ArrowRight');
    press(box.querySelector('svg'), 'ArrowRight');
    found.told[box.dataset.pick] = document.getElementById(box.dataset.pick).textContent;
  }
  const gantt = document.getElementById('gantt');
  if (gantt) {
    const marks = () => [...gantt.querySelectorAll('text.q')].map(text => text.textContent).join(' ');
    const told = document.getElementById('gantt-told');
    gantt.querySelector('[data-b]').dispatchEvent(new PointerEvent('pointermove', {bubbles: true}));
    found.ganttTold = told.textContent;
    found.gantt = {boxes: gantt.querySelectorAll('[data-b]').length, marks: marks()};
    press(gantt, '+');
    press(gantt, 'ArrowRight');
    found.gantt.zoomed = marks();
    document.querySelector('[data-g=all]').click();
    found.gantt.back = marks();
  }
  const tick = document.querySelector('.tick'), off = () => document.querySelectorAll('.ln.off').length;
  if (tick) {
    found.lines = document.querySelectorAll('.ln').length;
    press(tick, 'Enter');
    found.off = off();
    press(tick, ' ');
    found.offAgain = off();
  }
  found.copies = [...document.querySelectorAll('.copy')].map(button => button.dataset.copy);
  found.tiles = document.querySelectorAll('[data-pick=map-told] g[data-t]').length;
  found.focusable = [...document.querySelectorAll('[data-pick] svg, #gantt, .tick, button, a, summary')].every(item => item.tabIndex >= 0);
  found.errors = errors;
  const note = document.createElement('pre');
  note.id = 'probe';
  note.textContent = JSON.stringify(found);
  document.body.append(note);
});
</script>"""


def told(seconds, scale):
    """As the page prints it beside `scale`: four digits of that, in its unit."""
    size, unit = next((size, unit) for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")) if scale >= size)
    whole = len(str(int(scale / size)))
    return f"{seconds / size:.{max(0, min(3, 4 - whole))}f} {unit}"


def gibibytes(size):
    """As base/units.h: three digits, one behind the point from 10 on."""
    value = size / 2**30
    return f"{value:.1f} GiB" if value >= 10 else f"{value:.2f} GiB"


def text_of(page):
    """What a reader without pictures gets."""
    without = re.sub(r"<(script|style)\b.*?</\1>", " ", page.read_text(), flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", without))


class Page(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def plan(self, name, *flags):
        """The page, and what --json says of the same plan."""
        page = self.folder / f"{name}.html"
        command = [LOCKSTEP, "plan", *flags, "--html", str(page), "--json"]
        result = subprocess.run(command, capture_output=True, text=True)
        self.assertTrue(page.exists(), result.stderr)
        return page, json.loads(result.stdout)

    def probe(self, page, dark=False, width=1320):
        """The script stands in front of the page's own, so that it sees what goes wrong in that."""
        probed = page.with_suffix(".probe.html")
        probed.write_text(page.read_text().replace("<main>", PROBE + "<main>"))
        result = chromium(CHROMIUM, probed, "--dump-dom", f"--window-size={width},1400", scheme(dark))
        found = found_by_probe(result.stdout)
        self.assertTrue(found, result.stdout[-2000:])
        self.assertEqual(re.findall(r".*:CONSOLE.*", result.stderr), [])
        return found

    def screenshot(self, page, name, dark):
        picture = screenshot(CHROMIUM, page, (KEPT or self.folder) / f"{name}.png", dark, "1320,3000")
        self.assertEqual(picture[:8], b"\x89PNG\r\n\x1a\n")
        self.assertGreater(len(picture), 100_000)  # there is something on it
        return picture

    def check(self, page, found):
        self.assertEqual(found["errors"], [])
        self.assertEqual(found["empty"], [])
        self.assertEqual(found["lost"], 0)
        self.assertEqual(found["unheard"], [])
        self.assertEqual(found["sections"][:6], ["decision", "fit", "step", "network", "layouts", "what-if"])
        self.assertRegex(found["ganttTold"], r"^stage \d+, .*: .* from ")
        self.assertEqual(found["outside"], [])
        self.assertLessEqual(found["wide"], 0)
        self.assertGreaterEqual(found["svgs"], 8)
        self.assertGreater(found["texts"], 60)
        self.assertTrue(found["focusable"])
        for told in found["told"].values():
            self.assertNotIn("Hover", told)
        self.assertLess(page.stat().st_size, MOST_BYTES)
        self.assertEqual(re.findall(r'(?:src|href)="(?!#)[^"]*"|https?://|@import', page.read_text()), [])

    def test_facts_are_there_as_text(self):
        page, said = self.plan("dense", "--model.preset=llama3-8b", "--cluster", "4 nodes of 8xh100, leaf-spine 400G, 2 nodes a leaf, $2.5/h", "-n", "32")
        found = self.probe(page)
        self.check(page, found)
        text = text_of(page)
        for part in (said["model"], said["cluster"]["text"], "It fits.", "What limits it", "matrix products", "NVLink", "NIC", "Which layout", "What rejected the others",
                     "What if", "Which constants matter", "product_cap", said["layout"]["text"]):
            self.assertIn(part, text)
        for axis in said["traffic"]["axes"]:
            self.assertIn(axis["axis"], text)
        self.assertEqual(found["tiles"], 4)
        self.assertIn("rank", found["told"]["map-told"])
        flags = [copy for copy in found["copies"] if copy.startswith("-n ")]
        self.assertEqual(len(flags), 1 + len(said["search"]["best"]))  # of the decision, and of each layout
        self.assertEqual(flags[0], said["launch"]["flags"])
        self.assertEqual(flags[1], said["launch"]["flags"])
        self.assertIn(f"--parallel.tp={said['search']['best'][0]['layout']['tp']}", flags[0])
        self.same_numbers(text, said)

    def same_numbers(self, text, said):
        """What the page prints, rounded here from what --json has."""
        step, scale = said["step"], said["step"]["seconds"]
        seconds = lambda value: told(value, scale)
        shares = [f"{100 * step[key]:.1f} %" for key in ("mfu_causal", "mfu_noncausal")]
        worst = max(said["stages"], key=lambda stage: stage["reserved"])
        self.assertEqual(worst["stage"], said["worst_stage"])
        facts = [seconds(step["seconds"]), f"{seconds(step['low'])} to {seconds(step['high'])}", gibibytes(worst["reserved"]), *shares]
        facts += [seconds(value) for value in step["breakdown"].values() if value >= 0.0005 * scale]
        for what_if in said["what_ifs"]:
            facts += [what_if["what"], seconds(what_if["seconds"]), what_if["note"]]
            change = 100 * (what_if["seconds"] / scale - 1)
            facts.append("0.0 %" if abs(change) < 0.05 else f"{change:+.1f} %")
        for found in said["search"]["best"]:
            facts += [found["why"], gibibytes(found["memory"]), told(found["step"]["seconds"], said["search"]["best"][0]["step"]["seconds"])]
        facts += [f"{count:,}" for count in said["search"]["rejected"].values()]
        facts += [f"{100 * link['utilisation']:.1f} %" for link in said["traffic"]["links"]]
        for fact in facts:
            self.assertIn(fact, text)
        self.assertAlmostEqual(sum(step["breakdown"].values()), scale, delta=0.001 * scale)

    def test_keys_and_buttons(self):
        page, _ = self.plan("keys", "--model.preset=llama3-8b", "--cluster", "4 nodes of 8xh100", "-n", "32", "--parallel.pp=4", "--parallel.tp=4",
                            "--train.global_batch=64", "--train.micro_batch=1")
        found = self.probe(page)
        self.check(page, found)
        self.assertGreater(found["gantt"]["boxes"], 50)
        self.assertNotEqual(found["gantt"]["zoomed"], found["gantt"]["marks"])
        self.assertEqual(found["gantt"]["back"], found["gantt"]["marks"])
        if "lines" in found:
            self.assertLess(found["off"], found["lines"])
            self.assertEqual(found["offAgain"], 0)

    def test_light_and_dark(self):
        page, _ = self.plan("colours", "--model.preset=llama3-8b", "--cluster", "8xh100")
        light, dark = self.probe(page), self.probe(page, dark=True)
        narrow = self.probe(page, width=800)
        self.assertLessEqual(narrow["wide"], 0)
        self.assertEqual(narrow["outside"], [])
        self.assertEqual((light["colour"], dark["colour"]), ("rgb(255, 255, 255)", "rgb(21, 24, 29)"))
        self.assertNotEqual(*(self.screenshot(page, f"plan-{name}", name == "dark") for name in ("light", "dark")))

    def test_sixteen_thousand_ranks(self):
        page, said = self.plan("large", "--model.preset=gpt-100b", "--cluster", "2048 nodes of 8xh100, leaf-spine, 32 nodes a leaf, 2:1", "-n", "16384")
        self.assertEqual(said["devices"], 16384)
        found = self.probe(page)
        self.check(page, found)
        self.assertEqual(found["tiles"], 256)
        if KEPT:
            self.screenshot(page, "plan-large", dark=False)

    def test_experts(self):
        page, said = self.plan("experts", "--model.preset=qwen3-30b-a3b", "--cluster", "4 nodes of 8xh200, leaf-spine 400G, 2 nodes a leaf", "--train.global_batch=256")
        found = self.probe(page)
        self.check(page, found)
        text = text_of(page)
        self.assertIn("expert parallel waits", text)
        for axis in said["traffic"]["axes"]:
            self.assertIn(axis["axis"], text)

    def test_what_does_not_fit_is_told_and_drawn(self):
        page, said = self.plan("tight", "--model.preset=gpt-100b", "--cluster", "8xh100", "--parallel.tp=8")
        self.assertFalse(said["fits"])
        self.check(page, self.probe(page))
        self.assertIn("It does not fit.", text_of(page))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    LOCKSTEP, CHROMIUM = (sys.argv.pop(1) for _ in range(2))
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        KEPT = Path(sys.argv.pop(1)).resolve()
        KEPT.mkdir(parents=True, exist_ok=True)
    unittest.main()
