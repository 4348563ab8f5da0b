for (const card of document.querySelectorAll("[data-attended]")) {
  const boxes = card.querySelectorAll("rect"), words = card.querySelectorAll("button");
  for (const word of words) word.addEventListener("click", () => {
    const chosen = word.getAttribute("aria-pressed") !== "true";
    for (const other of words) other.setAttribute("aria-pressed", "false");
    word.setAttribute("aria-pressed", String(chosen));
    const weights = word.dataset.weights.split(" ").map(Number);
    boxes.forEach((box, n) => box.setAttribute("opacity", chosen ? 0.55 * (weights[n] || 0) : 0));
  });
  // Start with the word whose attention is most focused; an article attends to everything.
  const spread = word => word.dataset.weights.split(" ").reduce((sum, weight) => sum + Number(weight), 0);
  [...words].sort((a, b) => spread(a) - spread(b))[0]?.click();
}

// A definition opens below its term and stays within the window.
let chosenTerm = null;
for (const term of document.querySelectorAll(".term")) term.addEventListener("click", () => { chosenTerm = term; });
for (const meaning of document.querySelectorAll("[popover]")) meaning.addEventListener("toggle", event => {
  if (event.newState !== "open" || chosenTerm === null) return;
  const at = chosenTerm.getBoundingClientRect(), box = meaning.getBoundingClientRect();
  const fits = at.bottom + 6 + box.height < innerHeight;
  meaning.style.inset = "auto";
  meaning.style.left = Math.max(8, Math.min(at.left, innerWidth - box.width - 8)) + "px";
  meaning.style.top = (fits ? at.bottom + 6 : Math.max(8, at.top - box.height - 6)) + "px";
});

// An address with # unfolds the section around its target.
function unfold() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  const heading = target.nextElementSibling?.matches("details") ? target.nextElementSibling : null;
  for (let box = heading ?? target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();

async function copy(button, text) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.body.appendChild(Object.assign(document.createElement("textarea"), {value: text}));
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.textContent = "copied";
  setTimeout(() => { button.textContent = label; }, 1200);
}
for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", () => copy(button, button.previousElementSibling.textContent));

const own = cell => [...cell.childNodes].filter(node => !node.matches?.("small, [data-mark]")).map(node => node.textContent).join("").replace(/\s+/g, " ").trim();
const small = cell => cell.querySelector("small")?.textContent.replace(/\s+/g, " ").trim() ?? "";
const full = cell => own(cell) + (small(cell) ? ` (${small(cell)})` : "");
const plain = text => text.replace(/\u2212/g, "-");
const number = cell => { const read = plain(own(cell)).replace(/[,%]/g, ""); return read.trim() === "" ? NaN : Number(read); };
const FORMS = {
  Markdown: rows => {
    const lines = rows.map(row => "| " + row.map(cell => full(cell).replace(/\|/g, "\\|")).join(" | ") + " |");
    return [lines[0], "|" + rows[0].map((_, n) => n ? " ---: |" : " --- |").join(""), ...lines.slice(1)].join("\n");
  },
  LaTeX: rows => {
    const escaped = text => text.replace(/[\\&%$#_]|\u2212|\u2013|[{]|[}]|~|\^/g, symbol => ({"\\": "\\textbackslash ", "\u2212": "$-$", "\u2013": "--", "~": "\\textasciitilde ", "^": "\\textasciicircum "})[symbol] ?? "\\" + symbol);
    const lines = rows.map(row => row.map(cell => escaped(full(cell))).join(" & ") + " \\\\");
    return [`\\begin{tabular}{l${"r".repeat(rows[0].length - 1)}}`, "\\hline", lines[0], "\\hline", ...lines.slice(1), "\\hline", "\\end{tabular}"].join("\n");
  },
  CSV: rows => rows.map(row => row.map(cell => { const text = plain(own(cell)); return /[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text; }).join(",")).join("\r\n"),
};
for (const region of document.querySelectorAll(".wide")) {
  const table = region.querySelector("table"), [head] = table.tHead.rows, body = table.tBodies[0];
  const shown = () => [head, ...body.rows].filter(row => !row.hidden).map(row => [...row.cells]);
  const tools = document.createElement("div");
  tools.className = "tools";
  if (body.rows.length > 2) {
    const filter = Object.assign(document.createElement("input"), {type: "search", placeholder: "filter rows"});
    filter.setAttribute("aria-label", "Filter rows of " + region.getAttribute("aria-label"));
    filter.addEventListener("input", () => {
      for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(filter.value.toLowerCase());
    });
    tools.append(filter);
  }
  for (const [form, write] of Object.entries(FORMS)) {
    const button = Object.assign(document.createElement("button"), {type: "button", textContent: "Copy " + form});
    button.addEventListener("click", () => copy(button, write(shown())));
    tools.append(button);
  }
  region.before(tools);
  if (body.rows.length > 1) [...head.cells].forEach((title, column) => {
    const text = [...title.childNodes].find(node => node.nodeType === Node.TEXT_NODE && node.textContent.trim()) ?? title.querySelector(".term")?.firstChild;
    if (!text) return;
    const button = Object.assign(document.createElement("button"), {type: "button", className: "sort", textContent: title.querySelector(".term") ? "" : text.textContent.trim()});
    if (title.querySelector(".term")) { button.setAttribute("aria-label", "sort by " + text.textContent); button.textContent = " ⇅"; button.dataset.mark = ""; title.append(button); } else text.replaceWith(button);
    button.addEventListener("click", () => {
      const falls = title.getAttribute("aria-sort") === "descending" || (title.getAttribute("aria-sort") === null && column === 0);
      for (const other of head.cells) other.removeAttribute("aria-sort");
      title.setAttribute("aria-sort", falls ? "ascending" : "descending");
      const order = (a, b) => {
        const [x, y] = [a, b].map(row => number(row.cells[column]));
        if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;
        return (falls ? 1 : -1) * (isNaN(x) ? own(a.cells[column]).localeCompare(own(b.cells[column])) : x - y);
      };
      body.append(...[...body.rows].sort(order));
    });
  });
}
