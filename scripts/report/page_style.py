"""What makes the blocks of a page look and act: its style and its one script, which goes nowhere for anything."""

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c1f24;--soft:#5b6470;--line:#d9dce1;--band:#f5f6f8;--good:#11703c;
--fair:#8a5a00;--bad:#b3261e;--front:#c2410c}
@media (prefers-color-scheme:dark){:root{--paper:#16191f;--ink:#e6e8eb;--soft:#a3abb6;--line:#3a3f48;--band:#1e222a;
--good:#5ad08d;--fair:#f0b84a;--bad:#ff8a80;--front:#fb923c}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:76rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;overflow-wrap:break-word}
h1{font-size:1.6rem;line-height:1.2}h2{font-size:1.3rem;margin-top:2.5rem;border-bottom:1px solid var(--line)}
h3{font-size:1.05rem;margin-top:2rem}
figure{margin:1.5rem 0}figcaption,.about{color:var(--soft);font-size:.85rem}.about{margin:1.5rem 0 .4rem}
p,li,pre,figcaption,.details{max-width:60rem}
svg{display:block;width:100%;max-width:46rem;height:auto}svg *{stroke-linejoin:round;stroke-linecap:butt}
svg text{font-family:inherit!important}
.narrow{display:none}.large svg{min-width:46rem;max-width:60rem}
@media (max-width:37rem){.wide{display:none}.narrow{display:block}}
svg *{pointer-events:none}svg .point,svg .point *{pointer-events:auto}
.point{cursor:pointer;outline:none}.point path{opacity:1!important}
.point:hover use,.point:focus use,.point.shown use{opacity:.35!important}
.point:hover path,.point:focus path,.point.shown path{stroke:var(--ink)!important;stroke-width:1.6px!important}
.details{min-height:8.5rem;margin:.5rem 0;padding:.6rem .8rem;border-left:3px solid var(--front);background:var(--band);
font-size:.875rem}
.details>*{margin:.15rem 0}.details pre{max-height:7rem;overflow-y:auto;padding:.3rem 0}
.scroll{overflow-x:auto;margin:0 0 1rem}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .55rem;border-bottom:1px solid var(--line);text-align:right;vertical-align:top;white-space:nowrap}
th{border-bottom-width:2px;vertical-align:bottom}
.led th:first-child,.led td:first-child{position:sticky;left:0;background:var(--paper)}
tbody tr:nth-child(even),.led tbody tr:nth-child(even) td:first-child{background:var(--band)}
.word{text-align:left}td.word{white-space:normal;min-width:8rem}td.long{min-width:16rem}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.85em}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--band);padding:.7rem;border-radius:4px}
summary{cursor:pointer}
.green{color:var(--good)}.amber{color:var(--fair)}.red{color:var(--bad)}a{color:inherit}
@media print{:root{color-scheme:light;--paper:#fff;--ink:#000;--soft:#444;--line:#bbb;--band:#f5f6f8;
--good:#11703c;--fair:#8a5a00;--bad:#b3261e;--front:#c2410c}
@page{size:A4;margin:14mm}body{max-width:none;padding:0;font-size:10pt}.scroll{overflow:visible}
.narrow,.details,details,p:has(+details){display:none}.wide{display:block}
svg,.large svg{min-width:0;max-width:150mm;max-height:225mm}
table{font-size:7pt;width:100%}th,td{padding:2pt 3pt;white-space:normal}td span{white-space:nowrap}
td.word,td.long{min-width:0}
.about,figcaption{font-size:9pt}figure,tr,pre,.about{break-inside:avoid}h2,h3,.about{break-after:avoid}
thead{display:table-header-group}}
"""

# Pointing at a point, touching it or reaching it by keyboard shows what is known of it below its figure; of
# points that lie on each other, the nearest.
SCRIPT = """
const distance = (point, event) => {
  const box = point.getBoundingClientRect();
  return Math.hypot(box.x + box.width / 2 - event.clientX, box.y + box.height / 2 - event.clientY);
};
const nearest = (event) => {
  const above = event.type == "focusin" ? [event.target] : document.elementsFromPoint(event.clientX, event.clientY);
  const points = above.map((element) => element.closest(".point")).filter(Boolean);
  return points.sort((a, b) => distance(a, event) - distance(b, event))[0];
};
for (const figure of document.querySelectorAll("figure.pointed")) {
  const panel = figure.querySelector(".details");
  const show = (event) => {
    const point = nearest(event);
    if (!point) return;
    for (const old of figure.querySelectorAll(".shown")) old.classList.remove("shown");
    for (const same of figure.querySelectorAll(`[data-point="${point.dataset.point}"]`)) same.classList.add("shown");
    panel.replaceChildren(document.getElementById(point.dataset.point).content.cloneNode(true));
  };
  for (const kind of ["pointermove", "click", "focusin"]) figure.addEventListener(kind, show);
  figure.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    const point = event.target.closest(".point");
    if (!step || !point) return;
    event.preventDefault();
    const all = [...point.ownerSVGElement.querySelectorAll(".point")];
    all[(all.indexOf(point) + step + all.length) % all.length].focus();
  });
}
"""
