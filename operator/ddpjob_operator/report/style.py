"""The style of the page, and the script of the live page. No other resource is loaded."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --back: #ffffff; --edge: #d0d7de;
  --started: #9ecbff; --joined: #8ddb9f; --left: #e3c26f; --lost: #f0a355; --failed: #f28b82;
  --training: #9adbe0; --repeated: #c9b1f5; --hang: #d58fbf; --end: #c6ccd3; --line: #0757b5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa5b1; --back: #0d1117;
  --edge: #3a424c; --started: #1f5a96; --joined: #1d6b37; --left: #7a5d10; --lost: #8a4d0c;
  --failed: #93322c; --training: #0f5f66; --repeated: #5a4393; --hang: #7d3a68; --end: #4b535d;
  --line: #79b8ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 64rem; padding: 1rem; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0 0 .25rem; } h2 { margin: 2rem 0 .5rem; font-size: 1.25rem; }
h1, h3, p, dt, dd, .t { overflow-wrap: anywhere; }
p, caption { color: var(--soft); } p { margin: .25rem 0; } .state { color: var(--ink); } caption { text-align: left; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: .75rem;
  margin: 1rem 0; }
dl div { border: 1px solid var(--edge); border-radius: 6px; padding: .5rem .75rem; }
dt { color: var(--soft); font-size: .875rem; } dd { margin: 0; font-size: 1.25rem; }
.wide { overflow-x: auto; background:
  linear-gradient(to left, var(--back) 40%, transparent) right / 2rem 100% no-repeat local,
  linear-gradient(to left, var(--edge), transparent) right / .75rem 100% no-repeat; }
.wide:focus-visible, summary:focus-visible, a:focus-visible { outline: 3px solid var(--line); }
table { border-collapse: collapse; width: 100%; font-size: .9375rem; }
th, td { border-bottom: 1px solid var(--edge); padding: .25rem .375rem; text-align: left;
  vertical-align: top; }
.t { min-width: 16rem; } body:has(#jobs) { max-width: 80rem; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
svg { display: block; width: 100%; height: auto; margin: .5rem 0;
  overflow: visible; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.below, .in-band { text-anchor: middle; } .left { text-anchor: end; }
.grid { stroke: var(--edge); } .line { fill: none; stroke: var(--line); stroke-width: 2; }
.band { fill: var(--end); stroke: var(--back); } .hatch { fill: var(--ink); opacity: .45; }
.fault { stroke: var(--failed); stroke-width: 2; stroke-dasharray: 4 2; }
.key { display: inline-block; width: .9em; height: .9em; border: 1px solid var(--edge);
  background: var(--end); vertical-align: -1px; }
.name { white-space: nowrap; margin-right: 1rem; }
.problem { border: 2px solid var(--lost); border-radius: 6px; padding: .25rem .75rem;
  color: var(--ink); }
[role=status]:not(.problem) { position: absolute; width: 1px; height: 1px; overflow: hidden;
  clip-path: inset(50%); }
@media (max-width: 40rem) { h1 { font-size: 1.5rem; } svg text { font-size: 28px; }
  .in-band.slim { display: none; } }
"""
STYLE += "".join(
    f".band.{use} {{ fill: var(--{use}); }} .key.{use} {{ background: var(--{use}); }}\n"
    for use in (
        "started", "joined", "left", "lost", "failed", "training", "repeated", "hang", "end",
    )
)  # fmt: skip

# Replaces the page's main part if it has changed; open parts, the focus, the scrolled tables and a
# selected text stay.
SCRIPT = """
"use strict";
const main = document.querySelector("main"), status = document.querySelector("[role=status]");
let shown = "", state = "", ended = false;
function replace(text) {
  const open = [...main.querySelectorAll("details[open]")].map(each => each.id);
  const scrolled = [...main.querySelectorAll(".wide")].map(each => [each.id, each.scrollLeft]);
  const focus = main.contains(document.activeElement) ? document.activeElement.id : "";
  main.innerHTML = text;
  for (const [id, left] of scrolled) {
    const part = document.getElementById(id); if (part) part.scrollLeft = left;
  }
  for (const id of open) { const part = document.getElementById(id); if (part) part.open = true; }
  if (focus) { const part = document.getElementById(focus); if (part) part.focus({preventScroll: true}); }
}
function isReading() {
  const selected = getSelection();
  return !selected.isCollapsed && main.contains(selected.anchorNode);
}
async function refresh() {
  try {
    const answer = await fetch("run.json", {cache: "no-store"});
    if (!answer.ok) throw new Error(String(answer.status));
    const run = await answer.json();
    if (run.main !== shown && !isReading()) { shown = run.main; replace(run.main); }
    if (run.state !== state) { state = run.state; status.textContent = run.state; }
    status.className = ""; document.title = run.title; ended = !!run.ended;
    setTimeout(refresh, 1000);
  } catch (error) {
    state = "";
    if (ended) { status.textContent = "The run has ended. The page stays as it is."; return; }
    status.textContent = "The run has ended, or ddpjob does not answer. The page stays as it is.";
    status.className = "problem";
    setTimeout(refresh, 5000);
  }
}
refresh();
"""
