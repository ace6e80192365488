// What moves on the page about a plan: hovering, keys, copying, and the Gantt that can be zoomed. Text from outside becomes text, never HTML.
#include "lockstep/plan/plan_html_parts.h"

namespace lockstep::plan {

std::string_view plan_script() {
  return R"JS(
(() => {
'use strict';
const all = (query, inside) => [...(inside || document).querySelectorAll(query)];
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// One layout is marked wherever it is shown.
let marked = [];
function mark(items) {
  marked.forEach(item => item.classList.remove('on'));
  marked = items;
  marked.forEach(item => item.classList.add('on'));
}

for (const box of all('[data-pick]')) {
  const told = document.getElementById(box.dataset.pick), svg = box.querySelector('svg');
  const items = all('[data-t]', box).sort((a, b) => (a.dataset.i || 0) - (b.dataset.i || 0));
  const columns = Number(svg.dataset.columns || 1);
  let at = -1;
  const choose = index => {
    at = clamp(index, 0, items.length - 1);
    const item = items[at];
    mark(item.dataset.i ? all(`[data-i="${item.dataset.i}"]`) : [item]);
    told.textContent = item.dataset.t + (box.dataset.common ? '. ' + box.dataset.common : '');
  };
  if (!items.length) continue;
  svg.tabIndex = 0;
  items.forEach((item, index) => item.addEventListener('pointerenter', () => choose(index)));
  svg.addEventListener('keydown', event => {
    const step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns}[event.key];
    if (!step || event.target !== svg) return;
    event.preventDefault();
    choose(at < 0 ? 0 : at + step);
  });
}

const chosen = new Map(), ticks = all('.tick'), lines = all('.ln');
for (const tick of ticks) {
  const toggle = () => {
    if (chosen.get(tick.dataset.a) === tick.dataset.v) chosen.delete(tick.dataset.a);
    else chosen.set(tick.dataset.a, tick.dataset.v);
    for (const one of ticks) one.setAttribute('aria-pressed', chosen.get(one.dataset.a) === one.dataset.v);
    for (const line of lines) {
      const places = line.dataset.c.split(',');
      line.classList.toggle('off', [...chosen].some(([column, value]) => places[column] !== value));
    }
  };
  tick.addEventListener('click', toggle);
  tick.addEventListener('keydown', event => {
    if (event.key !== 'Enter' && event.key !== ' ') return;
    event.preventDefault();
    toggle();
  });
}

for (const button of all('.copy')) button.addEventListener('click', async () => {
  let done = true;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch {
    const area = document.createElement('textarea');
    area.value = button.dataset.copy;
    document.body.append(area);
    area.select();
    done = document.execCommand('copy');
    area.remove();
    button.focus();
  }
  button.textContent = done ? 'copied' : 'not copied';
  setTimeout(() => button.textContent = 'copy', 1500);
});

const holder = document.getElementById('gantt-data');
if (holder) gantt(JSON.parse(holder.textContent));

function gantt(data) {
  const svg = document.getElementById('gantt'), told = document.getElementById('gantt-told');
  const kWidth = 1180, kLeft = 84, kRight = 8, kTop = 26, whole = data.ticks;
  const stages = [...new Set(data.rows.map(row => row.stage))], many = stages.length > 16;
  const high = {c: many ? 12 : 22, t: many ? 3 : 7, n: many ? 3 : 7};
  const lanes = {c: 'computes', t: 'inside the node', n: 'network'};
  const kinds = {F: 'forward', B: 'backward', I: 'input gradient', W: 'weight gradient', R: 'recomputation', U: 'update and the rest',
                 T: 'transfer inside the node', N: 'network'};
  const kind = (lane, label) => lane === 't' ? 'T' : lane === 'n' ? 'N' : /^[FBIWR]/.test(label) ? label[0] : 'U';
  const safe = text => text.replace(/[&<>"]/g, c => `&#${c.charCodeAt(0)};`);
  const seconds = ticks => ticks / whole * data.step;
  const time = (s, scale) => {
    const size = Math.abs(scale ?? s);
    const [factor, unit] = size >= 1 ? [1, 's'] : size >= 1e-3 ? [1e3, 'ms'] : [1e6, 'us'];
    return `${+(s * factor).toPrecision(4)} ${unit}`;
  };
  const rows = data.rows.map(row => {
    let end = 0;
    const boxes = row.boxes.split(';').map(text => {
      const [label, gap, length] = text.split(',').map(Number), start = end + gap;
      end = start + length;
      return [start, end, data.labels[label]];
    });
    return {...row, boxes};
  });
  let y = kTop;
  const names = [];
  for (const stage of stages) {
    names.push([stage, y + high.c / 2 + 4]);
    for (const lane of 'ctn')
      for (const row of rows.filter(row => row.stage === stage && row.lane === lane)) {
        row.y = y;
        y += high[lane] + 2;
      }
    y += many ? 3 : 8;
  }
  const bottom = y, height = bottom + 20;
  svg.setAttribute('viewBox', `0 0 ${kWidth} ${height}`);
  let from = 0, to = whole;

  function legend() {
    let x = kLeft, text = '';
    const there = new Set(rows.flatMap(row => row.boxes.map(box => kind(row.lane, box[2]))));
    for (const [key, name] of [...Object.entries(kinds).filter(([key]) => there.has(key)), ['idle', 'waits']]) {
      text += `<rect class="${key}" x="${x}" y="2" width="14" height="12"/><text x="${x + 19}" y="12">${name}</text>`;
      x += 36 + 7 * name.length;
    }
    if (stages.length < data.stages) text += `<text class="q" x="${x}" y="12">${stages.length} of ${data.stages} stages are drawn</text>`;
    return text;
  }

  function marks(scale) {
    const least = (to - from) / 10, power = 10 ** Math.floor(Math.log10(seconds(least)));
    const step = [1, 2, 5, 10].find(factor => factor * power >= seconds(least)) * power / data.step * whole;
    let text = '';
    for (let mark = Math.ceil(from / step) * step; mark <= to; mark += step) {
      const x = kLeft + (mark - from) * scale;
      text += `<line class="grid" x1="${x}" y1="${kTop - 4}" x2="${x}" y2="${bottom}"/><text class="q ${x > kWidth - 36 ? 'r' : 'm'}" x="${x}" y="${bottom + 14}">${time(seconds(mark), seconds(to))}</text>`;
    }
    return text;
  }

  function draw() {
    const scale = (kWidth - kLeft - kRight) / (to - from), parts = [legend(), marks(scale)];
    for (const [stage, at] of names) parts.push(`<text class="r" x="${kLeft - 8}" y="${at}">stage ${stage}</text>`);
    rows.forEach((row, r) => {
      const size = high[row.lane];
      if (row.lane === 'c') parts.push(`<rect class="idle" x="${kLeft}" y="${row.y}" width="${kWidth - kLeft - kRight}" height="${size}"/>`);
      let run = null;
      const flush = () => {
        if (!run) return;
        const width = Math.max(run.end - run.x, .5), label = run.count > 1 ? '' : run.label;
        parts.push(`<rect class="${run.kind}${width > 4 ? ' k' : ''}" x="${run.x.toFixed(1)}" y="${row.y}" width="${width.toFixed(1)}" height="${size}" data-r="${r}" data-b="${run.index}"/>`);
        if (label && size > 10 && width > 6.6 * label.length + 4)
          parts.push(`<text class="n m" x="${(run.x + width / 2).toFixed(1)}" y="${row.y + size / 2 + 4}">${safe(label)}</text>`);
      };
      row.boxes.forEach(([start, end, label], index) => {
        if (end < from || start > to) return;
        const x = kLeft + (Math.max(start, from) - from) * scale, right = kLeft + (Math.min(end, to) - from) * scale, is = kind(row.lane, label);
        if (run && run.kind === is && x - run.end < .6 && right - x < 1.5) {
          run.end = Math.max(run.end, right);
          run.count += 1;
          return;
        }
        flush();
        run = {x, end: right, kind: is, label, index, count: 1};
      });
      flush();
    });
    svg.innerHTML = parts.join('');
  }

  function show(begin, end) {
    const length = clamp(end - begin, 100, whole);
    from = clamp(begin, 0, whole - length);
    to = from + length;
    draw();
  }
  const zoom = (factor, middle = (from + to) / 2) => show(middle - (middle - from) * factor, middle + (to - middle) * factor);
  const shift = share => show(from + share * (to - from), to + share * (to - from));
  const actions = {in: () => zoom(.5), out: () => zoom(2), left: () => shift(-.3), right: () => shift(.3), all: () => show(0, whole)};
  const keys = {'+': 'in', '=': 'in', '-': 'out', ArrowLeft: 'left', ArrowRight: 'right', 0: 'all', Home: 'all'};
  all('[data-g]').forEach(button => button.addEventListener('click', actions[button.dataset.g]));
  svg.addEventListener('keydown', event => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[keys[event.key]]();
  });
  const place = event => {
    const frame = svg.getBoundingClientRect();
    return from + ((event.clientX - frame.left) / frame.width * kWidth - kLeft) / (kWidth - kLeft - kRight) * (to - from);
  };
  svg.addEventListener('wheel', event => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : .8, place(event));
  }, {passive: false});
  svg.addEventListener('dblclick', event => zoom(.4, place(event)));
  let held = null;
  svg.addEventListener('pointerdown', event => { held = {at: place(event), from, to}; });
  addEventListener('pointerup', () => { held = null; });
  svg.addEventListener('pointermove', event => {
    if (held && event.buttons) {
      const moved = held.at - place(event);
      show(from + moved, to + moved);
      return;
    }
    const {r, b} = event.target.dataset;
    if (b === undefined) return;
    const [start, end, label] = rows[r].boxes[b];
    told.textContent = `stage ${rows[r].stage}, ${lanes[rows[r].lane]}: ${label}, ${time(seconds(end - start))} from ${time(seconds(start))}`;
  });
  addEventListener('beforeprint', actions.all);
  draw();
}
})();
)JS";
}

}  // namespace lockstep::plan
