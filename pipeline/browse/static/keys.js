// Keys for lists of pairs: j and k go on and back, m marks a true match, n none, u takes the last mark back.
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
  if (!done || !entries.length && event.key !== "u") return;
  event.preventDefault();
  done();
});

// After a mark the page comes back to where it was, or (no element is called "queue") to the next one waiting.
if (location.hash === "#queue") entries[0]?.focus();
else if (location.hash) document.querySelector("[data-entry]:target")?.focus();
