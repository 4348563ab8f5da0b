// Keys for lists of pairs: j next, k previous, m true match, n not a match, u undo.
"use strict";
const entries = [...document.querySelectorAll("[data-entry]")];
const current = () => document.activeElement?.closest("[data-entry]") ?? document.querySelector("[data-entry]:target");

function go(by) {
  const now = current();
  const next = entries[now ? entries.indexOf(now) + by : 0];
  next?.focus();
}

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const press = which => (current() ?? entries[0])?.querySelector(`button[data-key="${which}"]`)?.click();
  const done = {
    j: () => go(1),
    k: () => go(-1),
    m: () => press("m"),
    n: () => press("n"),
    u: () => document.querySelector('button[data-key="u"]')?.click(),
  }[event.key];
  if (!done || event.repeat && "mnu".includes(event.key) || !entries.length && event.key !== "u") return;
  event.preventDefault();
  done();
});

// After a mark, return to the marked entry, or in a queue of suspects to the next one.
if (location.hash) document.querySelector("[data-entry]:target")?.focus();
