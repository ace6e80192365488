"""Chat templates against jinja2 as transformers sets it up. chat_template_test.py CHAT_RENDER"""
import copy
import json
import random
import subprocess
import sys
import unittest
from pathlib import Path

from transformers.utils.chat_template_utils import _compile_jinja_template

RENDER = sys.argv.pop(1) if len(sys.argv) > 1 else sys.exit("usage: chat_template_test.py CHAT_RENDER")

# Templates of the shape of published ones, and one with all that those leave out.
FOLDER = Path(__file__).parent / "fixtures" / "chat_templates"
TEMPLATES = [(FOLDER / f"{name}.jinja").read_text() for name in ("chatml", "llama", "mistral", "qwen3", "macros")]

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather \u2603 at a <place> & time",
          "parameters": {"type": "object", "required": ["city"], "properties": {
              "city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}},
              "unit": {"type": "string", "enum": ["C", "F"]}}}, "return": {"type": "string"}}},
         {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {
    "name": "weather", "arguments": {"city": "Z\u00fcrich \U0001f600", "days": [1, 2.5, None, True]}}}]}
TALKS = [
    [{"role": "user", "content": "  Hello \u00e9 "}],
    [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": " Yes? "},
     {"role": "user", "content": "'quoted' \"twice\"\n\tand <b>"}],
    [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nBecause."},
     {"role": "user", "content": "And?"}, {"role": "assistant", "content": "So.", "reasoning_content": "\nthought\n"}],
    [{"role": "user", "content": "Weather?"}, CALL, {"role": "tool", "content": "12 C"}, {"role": "tool", "content": "rain"},
     {"role": "assistant", "content": "12 C, rain."}],
    [{"role": "assistant", "content": "out of turn"}, {"role": "assistant", "content": "again"}],
    [{"role": "user", "content": None}, {"role": "critic", "content": "no"}],
]


def theirs(template, variables):
    """What transformers renders, or None where it raises."""
    try:
        return _compile_jinja_template(template).render(**copy.deepcopy(variables))  # some filters change their operand
    except Exception:  # whatever jinja2 and Python raise
        return None


def ours(requests):
    """A list of answers to (template, variables)."""
    lines = "".join(json.dumps({"template": t, "variables": v}) + "\n" for t, v in requests)
    done = subprocess.run([RENDER], input=lines, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


VARIABLES = {"s": "Hello, W\u00f6rld", "t": "  a b  c\n", "e": "", "n": 7, "z": 0, "f": 2.5, "y": True, "no": None,
             "l": [3, 1, 2], "w": ["b", "A", "c"], "d": {"a": 1, "b": [1, 2], "items": "mine"},
             "m": [{"role": "user", "content": "x", "n": 2}, {"role": "system", "content": "Y", "n": 1}, {"role": "user"}]}
ATOMS = ["s", "t", "e", "n", "z", "f", "y", "no", "l", "w", "d", "m", "missing", "'a'", "\"b c\"", "3", "-2", "1.5", "true", "none",
         "[]", "[1, 'x']", "{'k': 2}", "(1, 2)", "d.a", "d['b']", "m[0].role", "m[-1].content", "d.get('a')", "d.get('q', 5)",
         "range(4)|list", "'\\u00e9\\n'", "1e3"]
FILTERS = ["trim", "upper", "lower", "title", "capitalize", "length", "first", "last", "string", "int", "float", "list", "tojson",
           "default('D')", "default('D', true)", "join('-')", "join", "replace('l', 'L')", "tojson(indent=2)", "reverse|list",
           "sort", "sort(reverse=true)", "unique|list", "map('string')|list", "map('upper')|list", "select|list",
           "reject('none')|list", "select('string')|list", "map(attribute='role')|list", "selectattr('n')|list",
           "selectattr('role', 'equalto', 'user')|list", "rejectattr('n', 'defined')|list", "min", "max", "sum", "abs", "round",
           "dictsort", "items|list", "indent", "indent(2, true)", "escape", "tojson(sort_keys=true)", "map(attribute='n', default=0)|list",
           "sort(attribute='role')", "join(', ', attribute='role')", "trim('He')", "replace('', '_')", "replace('o', '0', 1)"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "sequence", "number", "integer", "float", "boolean", "iterable",
         "true", "false", "equalto 3", "eq('a')", "in [1, 7]", "odd", "even", "divisibleby 3", "lower", "upper", "not none",
         "not defined", "sameas true", "gt 2", "callable"]
METHODS = [".strip()", ".split()", ".split(',')", ".split('l', 1)", ".upper()", ".startswith('He')", ".endswith(('d', 'c'))",
           ".replace('l', '')", ".items()|list", ".keys()|list", ".values()|list", ".lstrip(' H')", ".rstrip()", ".title()",
           ".find('o')", ".count('l')", ".rsplit(None, 1)", ".splitlines()", ".isdigit()", ".index(2)", ".get('a', 0)",
           ".removeprefix('He')", ".islower()", ".join(w)", ".copy()", ".replace('', '-', 3)"]
SUBSCRIPTS = ["[0]", "[-1]", "[1:]", "[:-1]", "[::-1]", "[::2]", "[5:1:-2]", "['a']", "[9]", "[-9:2]", ".a", ".role"]


def expression(rng, depth):
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(ATOMS)
    sub = lambda: expression(rng, depth - 1)  # noqa: E731
    kind = rng.randrange(11)
    if kind == 0:
        return f"({sub()} {rng.choice(['+', '-', '*', '/', '//', '%', '**', '~'])} {sub()})"
    if kind == 1:
        return f"({sub()} {rng.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} {sub()})"
    if kind == 2:
        return f"({sub()} {rng.choice(['and', 'or'])} {sub()})"
    if kind == 3:
        return f"(not {sub()})"
    if kind == 4:
        return f"({sub()} if {sub()} else {sub()})"
    if kind in (5, 6):
        return f"({sub()}|{rng.choice(FILTERS)})"
    if kind == 7:
        return f"({sub()} is {rng.choice(TESTS)})"
    if kind == 8:
        return f"({sub()}){rng.choice(METHODS)}"
    if kind == 9:
        return f"({sub()}){rng.choice(SUBSCRIPTS)}"
    return rng.choice([f"[{sub()}, {sub()}]", f"{{'q': {sub()}}}", f"({sub()}, {sub()})", f"-{sub()}"])


class ChatTemplateTest(unittest.TestCase):
    maxDiff = None

    def test_templates_of_published_shapes(self):
        requests = []
        for template in TEMPLATES:
            for talk in TALKS:
                for tools in (None, TOOLS):
                    for extra in ({}, {"add_generation_prompt": True, "enable_thinking": False},
                                  {"builtin_tools": ["weather", "code_interpreter"], "tools_in_user_message": False}):
                        variables = {"messages": talk, "bos_token": "<s>", "eos_token": "</s>", **extra}
                        requests.append((template, variables | ({"tools": tools} if tools or "tools_in" not in str(extra) else {})))
        rendered = 0
        for (template, variables), answer in zip(requests, ours(requests), strict=True):
            expected = theirs(template, variables)
            with self.subTest(template=template[:40], variables=variables):
                self.assertEqual(answer.get("text"), expected, answer)
            rendered += expected is not None
        self.assertGreater(rendered, len(requests) // 2)

    def test_generated_expressions(self):
        """Where jinja2 gives a text it is ours too. Where it raises we may be more lenient, where we refuse it must be
        something that our header leaves out."""
        rng = random.Random(5)
        requests = [("{{ " + expression(rng, rng.randrange(1, 4)) + " }}", VARIABLES) for _ in range(800)]
        agreed = refused = 0
        for (template, variables), answer in zip(requests, ours(requests), strict=True):
            expected = theirs(template, variables)
            if expected is None or " object at 0x" in expected or "dict_" in expected or "<bound" in expected or "<built-in" in expected or "Markup" in expected:
                continue
            with self.subTest(template):
                if "text" not in answer:
                    self.assertRegex(answer["what"], "not supported|beyond 64 bits|printed|a root of a negative", answer)
                    refused += 1
                    continue
                self.assertEqual(answer["text"], expected)
                agreed += 1
        self.assertGreater(agreed, 250)
        self.assertLess(refused, agreed // 20)

    def test_white_space(self):
        rng = random.Random(7)
        pieces = ["a", " ", "\n", "\t", "\r\n", "  {% if x %}", "{%- if x -%}", "{%+ if x +%}", "{% endif %}", "{%- endif %}",
                  "{{ x }}", "{{- x -}}", "{# c #}", "{#- c -#}", "  {# c\n #}\n", "{% set y = 1 %}", "{%- set y = 2 -%}", "{{ y }}",
                  "{% raw %} {{ {% \n{% endraw %}", "{%- raw -%} r {%- endraw -%}", "\n\n", "{% for i in [1, 2] %}\n{{ i }}\n{% endfor %}\n"]
        requests = []
        for _ in range(600):
            text = "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 12)))
            requests.append((text + "{% endif %}" * max(0, text.count("if x") - text.count("endif %}")), {"x": "X"}))
        both = 0
        for (template, variables), answer in zip(requests, ours(requests), strict=True):
            expected = theirs(template, variables)
            with self.subTest(template=template):
                self.assertEqual(answer.get("text"), expected, answer)
            both += expected is not None
        self.assertGreater(both, 300)

    def test_statements(self):
        for template in (
                "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{{ loop.index }}{{ loop.revindex0 }}{{ loop.last }};{% endfor %}",
                "{% for x in [] %}{{ x }}{% else %}none{% endfor %}", "{% for c in 'h\u00e9y' %}[{{ c }}]{% endfor %}",
                "{% for k in {'a': 1} %}{{ k }}{% endfor %}", "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}",
                "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}", "{% set a, b = 'xy' %}{{ b }}{{ a }}",
                "{% for x in range(5) if x % 2 %}{{ loop.index }}{{ x }}{{ loop.previtem }}{{ loop.nextitem }}|{% endfor %}",
                "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{{ loop.cycle('a', 'b') }}{% endfor %}",
                "{% macro m(a, b='q') %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }}{{ m(b=2, a=3) }}{{ m() }}{{ m(1, 2) | length }}",
                "{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
                "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "{% set ns = namespace(a=1) %}{% set ns.b = ns.a + 1 %}{{ ns.b }}",
                "{{ 'a' 'b' }}{{ 1 < 2 < 3 }}{{ 2 ** 3 ** 2 }}{{ -2 ** 2 }}{{ 7 // -2 }}{{ -7 % 3 }}{{ 1_000 }}{{ 10 / 4 }}",
                "{{ {'a': {'b': 1}}.a.b }}{{ [[1]][0][0] }}{{ 'x' if false }}{{ none }}{{ true }}{{ 1.0 }}{{ 1e20 }}{{ 1e-5 }}",
                "{{ dict(a=1) }}{{ dict({'x': 1}, y=2) | tojson }}{{ [1, 'a', none, {'k': 1.5}] }}{{ (1,) }}",
                "{% set t %}\n x {{ 1 }}\n{% endset %}[{{ t }}]", "{% set t | upper | trim %} x {% endset %}[{{ t }}]",
                "{% if 0 %}a{% elif '' %}b{% elif [0] %}c{% else %}d{% endif %}", "{{ 'it''s' }}{{ \"\\x41\\101\\u0042\\q\" }}",
                "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}"):
            with self.subTest(template):
                expected = theirs(template, {})
                self.assertIsNotNone(expected)
                self.assertEqual(ours([(template, {})])[0].get("text"), expected, ours([(template, {})]))

    def test_the_time(self):
        answer = ours([("{{ strftime_now('%Y') }}", {})])[0]
        self.assertIn(answer["text"], ("1970", "1969"))  # of `now` = 0, in any time zone

    def test_what_goes_wrong_is_named_with_its_line(self):
        for template, code, words in (
                ("a\n{% include 'x' %}", "LS1247", ["include", "template:2"]), ("{{ x | urlize }}", "LS1247", ["urlize"]),
                ("{{ x is escaped }}", "LS1247", ["escaped"]), ("{% if x %}", "LS1246", ["endif"]), ("{{ x", "LS1246", ["}}"]),
                ("{{ 'a }}", "LS1246", ["quotes"]), ("{% nonsense %}", "LS1246", ["nonsense"]), ("{{ x.y }}", "LS1248", ["'x'"]),
                ("\n\n{{ raise_exception('no ' ~ 1) }}", "LS1249", ["no 1", "template:3"]), ("{{ 'a' + 1 }}", "LS1248", ["str", "int"]),
                ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "LS1250", []),
                ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "LS1250", ["macros"]), ("{{ 'a' * 99999999999 }}", "LS1250", []),
                ("{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "LS1250", []),
                ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "LS1246", ["deep"]), ("{% if 1 %}" * 5000, "LS1246", ["deep"]),
                ("{{ 'x'.encode() }}", "LS1248", ["encode"]), ("{% set x.y = 1 %}", "LS1248", ["namespace"]),
                ("{% set l = [] %}{{ l.append(1) }}", "LS1248", ["changes"])):
            with self.subTest(template[:60]):
                answer = ours([(template, {})])[0]
                self.assertEqual(answer.get("code"), code, answer)
                for word in words:
                    self.assertIn(word, answer["where"] + " " + answer["what"])

    def test_damaged_templates_never_crash(self):
        rng = random.Random(11)
        sources = TEMPLATES
        requests = []
        for _ in range(800):
            text = list(rng.choice(sources))
            for _ in range(rng.randrange(1, 6)):
                at = rng.randrange(len(text))
                kind = rng.randrange(4)
                if kind == 0:
                    del text[at:at + rng.randrange(1, 20)]
                elif kind == 1:
                    text[at] = rng.choice("{}%#-+'\"()[]|.,:~ \n\\0azé")
                elif kind == 2:
                    text[at:at] = rng.choice(["{% for x in messages %}", "{{", "%}", "{% endif %}", "|map(", "loop.", "not ", "*"])
                else:
                    other = rng.choice(sources)
                    begin = rng.randrange(len(other))
                    text[at:at] = other[begin:begin + 40]
                if not text:
                    break
            requests.append(("".join(text), {"messages": rng.choice(TALKS), "tools": TOOLS, "bos_token": "<s>", "eos_token": "</s>"}))
        for answer in ours(requests):
            self.assertTrue("text" in answer or answer["code"].startswith("LS12"), answer)


if __name__ == "__main__":
    unittest.main(verbosity=2)
