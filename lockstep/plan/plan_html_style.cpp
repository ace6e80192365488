// How the page about a plan looks. Colours of Okabe and Ito; what only a colour would tell is written beside it.
#include "lockstep/plan/plan_html_parts.h"

namespace lockstep::plan {

std::string_view plan_style() {
  return R"(
:root{color-scheme:light dark;--bg:#fff;--fg:#1c1f24;--q:#5a626e;--line:#d5d9df;--soft:#f3f4f6;--hatch:#c3c8d0;--link:#0059a3;
--t0:#e8f1f8;--t1:#c3dcee;--t2:#8fbfe0;--t3:#4f9bcb;--t4:#0072b2;--t5:#d55e00;--x0:#111;--x3:#111;--x4:#fff;--x5:#111;--warn:#a34700}
@media screen and (prefers-color-scheme:dark){:root{--bg:#15181d;--fg:#e4e7eb;--q:#9aa3af;--line:#2c323b;--soft:#1d2127;--hatch:#4b5461;--link:#56b4e9;
--t0:#1d2b38;--t1:#1f3f58;--t2:#22597f;--t3:#2b77a8;--t4:#56b4e9;--t5:#e8762b;--x0:#e4e7eb;--x3:#fff;--x4:#111;--x5:#111;--warn:#f0955a}}
body{margin:0 auto;padding:24px 28px 40px;max-width:1240px;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,"DejaVu Sans",Verdana,sans-serif}
h1{font-size:22px;margin:0 0 2px}h2{font-size:18px;margin:36px 0 8px}h3{font-size:15px;margin:22px 0 6px}.q{color:var(--q)}p{margin:6px 0}a{color:var(--link)}
nav a{margin-right:16px}ul{margin:6px 0;padding-left:22px}dt{font-weight:600}dd{margin:0 0 8px 18px;white-space:pre-line}
.cards{display:flex;flex-wrap:wrap;gap:12px;margin:18px 0 8px}.card{border:1px solid var(--line);border-radius:8px;padding:10px 16px;min-width:120px}
.card b{display:block;font-size:21px;font-weight:600;font-variant-numeric:tabular-nums}.card span{color:var(--q);font-size:13px}
.pic,.wide{overflow-x:auto}.pic svg{display:block;width:100%;height:auto;min-width:860px}
svg:focus-visible,button:focus-visible,summary:focus-visible,.tick:focus-visible{outline:2px solid var(--link);outline-offset:2px}
.told{display:block;min-height:2.8em;margin:4px 0 10px;color:var(--q);font-size:13px;line-height:1.4;overflow-wrap:anywhere}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13.5px;margin:10px 0}caption{text-align:left;color:var(--q);font-size:13px;padding:2px 0}
th,td{padding:4px 12px 4px 0;text-align:right;border-bottom:1px solid var(--line);vertical-align:top}th{font-weight:600}th,td{white-space:nowrap}.l{text-align:left;white-space:normal}tr.with td{border:0}tr.with td.l:nth-child(2){font-weight:600}
.say{width:100%;font-size:14.5px}.say th{text-align:left;vertical-align:top;width:86px;color:var(--q);font-weight:400}.say td{text-align:left;white-space:normal}
.say .warn th,.say .warn b{color:var(--warn);font-weight:700}.run{margin:8px 0}.bar{display:block;margin-top:3px}th.group{padding-top:14px;color:var(--q);font-weight:400;font-style:italic}
tr.no td{color:var(--q)}td details{margin:2px 0}
tr.on td{background:var(--soft)}.key{vertical-align:-1px;margin-right:4px}
code{font:12px ui-monospace,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere}
button{font:inherit;font-size:13px;color:var(--fg);background:var(--soft);border:1px solid var(--line);border-radius:6px;padding:2px 10px;cursor:pointer}
pre{overflow-x:auto;font:12px/1.45 ui-monospace,"DejaVu Sans Mono",monospace;background:var(--soft);padding:12px;border-radius:8px}
details{margin:10px 0}summary{cursor:pointer}
svg{font-family:system-ui,"DejaVu Sans",Verdana,sans-serif;font-size:12px;font-variant-numeric:tabular-nums}
svg text{fill:var(--fg)}text.r{text-anchor:end}text.m{text-anchor:middle}text.q{fill:var(--q)}text.b{font-weight:600}text.s{font-size:9px}
text.n{fill:#fff;text-anchor:middle;font-weight:600}
.grid{stroke:var(--line)}.axis{stroke:var(--q)}.limit{stroke:#d55e00;stroke-width:2;stroke-dasharray:6 4}.edge{stroke:var(--bg);stroke-width:.7}
.band{fill:#56b4e9;opacity:.55}.now{fill:var(--fg)}.domain{fill:none;stroke:var(--q);stroke-dasharray:2 3}.halo{paint-order:stroke;stroke:var(--bg);stroke-width:4px}.spine,.leaf{fill:var(--soft);stroke:var(--line)}.wire{fill:var(--q)}.rail{fill:var(--soft)}
.load,.better{fill:#0072b2}.over,.worse{fill:#d55e00}.plus{fill:#e69f00}.minus{fill:#56b4e9}
.m-p{fill:#0072b2}.m-g{fill:#56b4e9}.m-o{fill:#009e73}.m-a{fill:#e69f00}.m-b{fill:#f0e442}.m-x{fill:#8b93a1}
.s-products{fill:#56b4e9}.s-attention{fill:#0072b2}.s-pointwise{fill:#009e73}.s-recompute{fill:#cc79a7}.s-optimizer{fill:#f0e442}.s-host{fill:#8b93a1}
.s-tensor{fill:url(#p-tensor)}.s-context{fill:url(#p-context)}.s-experts{fill:url(#p-experts)}.s-pipeline{fill:url(#p-pipeline)}.s-data{fill:url(#p-data)}
.s-bubble,.idle{fill:url(#p-idle)}
rect.t-0{fill:var(--t0)}rect.t-1{fill:var(--t1)}rect.t-2{fill:var(--t2)}rect.t-3{fill:var(--t3)}rect.t-4{fill:var(--t4)}rect.t-5{fill:var(--t5)}
rect.t-none{fill:url(#p-idle)}text.t-0,text.t-1,text.t-2{fill:var(--x0)}text.t-3{fill:var(--x3)}text.t-4{fill:var(--x4)}text.t-5{fill:var(--x5)}
.on>rect{stroke:var(--fg);stroke-width:2}.front{fill:none;stroke:var(--q);stroke-dasharray:3 3}
circle.best{fill:#0072b2;stroke:var(--bg)}circle.other{fill:#56b4e9;stroke:var(--bg)}.on>circle{stroke:var(--fg);stroke-width:3}
.ln{fill:none;stroke:#56b4e9;stroke-width:1.5;opacity:.55}.ln.best{stroke:#0072b2;stroke-width:2.2;opacity:.9}.ln.first{stroke:#d55e00;stroke-width:3;opacity:1}
.ln.off{opacity:.07}.ln.on{stroke:var(--fg);stroke-width:3.5;opacity:1}
.tick{cursor:pointer;paint-order:stroke;stroke:var(--bg);stroke-width:4px}.tick[aria-pressed=true]{font-weight:700;text-decoration:underline}
#gantt{touch-action:pan-y;cursor:grab;user-select:none}#gantt text{pointer-events:none}#gantt .n{fill:#111;font-weight:400;font-size:11px}
.F{fill:#56b4e9}.B,.I{fill:#e69f00}.W{fill:#009e73}.R{fill:#cc79a7}.U{fill:#f0e442}.T{fill:#0072b2}.N{fill:#8b93a1}#gantt .k{stroke:var(--bg);stroke-width:.7}
@page{size:landscape;margin:12mm}
@media print{body{max-width:none;padding:0;font-size:11px}.pic svg{min-width:0}.pic,.card,tr{break-inside:avoid}h2,h3{break-after:avoid}
button,nav,.keys,.told{display:none}table{font-size:10px}}
)";
}

}  // namespace lockstep::plan
