"""The drawings of a step as a browser shows them.   report_chromium_test.py PATH/TO/lockstep PATH/TO/chromium [FOLDER]

Opens the page of every schedule in headless Chromium, light and dark, and asks it where every text lies: none runs out of its picture
or over another one. With a FOLDER the screenshots stay there, for people to look at.
"""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))
from chromium import chromium, found_by_probe, scheme, screenshot

LOCKSTEP, CHROMIUM, KEPT = "", "", None
SCHEDULES = ["naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v"]
MODEL = ["--model.preset=gpt2-test", "--model.layers=8", "--train.global_batch=8", "--train.micro_batch=1"]

# Runs in the page: what it looks like, as JSON in an element of its own.
PROBE = """<script>
addEventListener('load', () => {
  const found = {colour: getComputedStyle(document.body).backgroundColor, overlaps: [], outside: [], texts: 0, svgs: 0};
  found.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  for (const svg of document.querySelectorAll('svg')) {
    ++found.svgs;
    const frame = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll('text')].filter(t => t.getClientRects().length);
    const boxes = texts.map(t => t.getBoundingClientRect());
    found.texts += texts.length;
    found.picture = getComputedStyle(svg.querySelector('.bg')).fill;
    boxes.forEach((a, i) => {
      if (a.left < frame.left || a.right > frame.right || a.top < frame.top || a.bottom > frame.bottom)
        found.outside.push(texts[i].textContent);
      boxes.forEach((b, j) => {
        if (j > i && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4)
          found.overlaps.push([texts[i].textContent, texts[j].textContent]);
      });
    });
  }
  const note = document.createElement('pre');
  note.id = 'probe';
  note.textContent = JSON.stringify(found);
  document.body.append(note);
});
</script>"""


class Report(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def draw(self, schedule, *more):
        """The page of the schedule over four ranks."""
        page = self.folder / f"{schedule}.html"
        command = [LOCKSTEP, "show", "program", "-n", "4", "--parallel.pp=4", f"--parallel.schedule={schedule}", *MODEL,
                   "--html", str(page), *more]
        result = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        return page

    def probe(self, page, dark=False):
        probed = page.with_suffix(".probe.html")
        probed.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
        dom = chromium(CHROMIUM, probed, "--dump-dom", "--window-size=1320,1400", scheme(dark)).stdout
        found = found_by_probe(dom)
        self.assertTrue(found, dom[-2000:])
        return found

    def screenshot(self, page, name, dark, size="1320,1400"):
        return screenshot(CHROMIUM, page, (KEPT or self.folder) / f"{name}.png", dark, size)

    def test_every_schedule_can_be_read(self):
        for schedule in SCHEDULES:
            with self.subTest(schedule):
                page = self.draw(schedule)
                found = self.probe(page)
                self.assertEqual(found["svgs"], 1)
                self.assertGreater(found["texts"], 70)  # the numbers of microbatches above all
                self.assertEqual(found["outside"], [])
                self.assertEqual(found["overlaps"], [])
                self.assertLessEqual(found["wide"], 0)
                if KEPT:
                    self.screenshot(page, schedule, dark=False)

    def test_light_and_dark(self):
        page = self.draw("zb-h1")
        light, dark = self.probe(page), self.probe(page, dark=True)
        self.assertEqual((light["colour"], light["picture"]), ("rgb(255, 255, 255)", "rgb(255, 255, 255)"))
        self.assertEqual((dark["colour"], dark["picture"]), ("rgb(21, 24, 29)", "rgb(21, 24, 29)"))
        pictures = [self.screenshot(page, f"zb-h1-{name}", name == "dark") for name in ("light", "dark")]
        self.assertNotEqual(*pictures)
        for picture in pictures:
            self.assertEqual(picture[:8], b"\x89PNG\r\n\x1a\n")
            self.assertGreater(len(picture), 20_000)  # there is something on it

    def test_costs_and_all_axes(self):
        costs = self.folder / "costs.toml"
        costs.write_text("[forward]\nembedding = 1e-4\nblock = 1e-3\nhead = 2e-3\n[input]\nblock = 1.1e-3\nhead = 2e-3\n"
                         "[weight]\nblock = 0.9e-3\nhead = 1.9e-3\n[transfer]\nlatency = 2e-4\n[collective]\nlatency = 1e-4\n"
                         "[update]\nstep = 1e-3\n")
        page = self.folder / "all.html"
        command = [LOCKSTEP, "show", "program", "-n", "8", "--parallel.pp=2", "--parallel.tp=2", "--parallel.dp=2", *MODEL,
                   "--html", str(page), "--costs", str(costs)]
        result = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        found = self.probe(page)
        self.assertEqual((found["outside"], found["overlaps"]), ([], []))
        if KEPT:
            self.screenshot(page, "all-axes", dark=True)

    def test_a_picture_alone(self):
        picture = self.folder / "step.svg"
        command = [LOCKSTEP, "show", "program", "-n", "4", "--parallel.pp=4", *MODEL, "--svg", str(picture)]
        self.assertEqual(subprocess.run(command, capture_output=True).returncode, 0)
        image = self.screenshot(picture, "picture", dark=True, size="1240,480")
        self.assertEqual(image[16:24], (1240).to_bytes(4, "big") + (480).to_bytes(4, "big"))
        self.assertGreater(len(image), 10_000)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    LOCKSTEP, CHROMIUM = (sys.argv.pop(1) for _ in range(2))
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        KEPT = Path(sys.argv.pop(1)).resolve()
        KEPT.mkdir(parents=True, exist_ok=True)
    unittest.main()
