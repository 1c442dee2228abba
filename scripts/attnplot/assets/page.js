// SPDX-License-Identifier: MIT
// Without this script the page shows the same; with it the points can be sorted and filtered.
"use strict";
{
  const root = document.documentElement;
  root.dataset.js = "";

  // Storage may be blocked; the choice then lasts as long as the page.
  const KEY = "attnbench-theme";
  const stored = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  const store = (theme) => { try { localStorage.setItem(KEY, theme); } catch { /* blocked */ } };
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  if (["light", "dark"].includes(stored())) root.dataset.theme = stored();  // before anything is drawn

  const startTheme = () => {
    const button = document.getElementById("theme");
    const show = () => button.setAttribute("aria-pressed", dark());
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      store(root.dataset.theme);
      show();
    });
    system.addEventListener("change", show);
    show();
  };

  const startPoints = () => {
    const table = document.getElementById("points");
    if (!table) return;
    const body = table.tBodies[0];
    const form = document.getElementById("filter");
    const count = document.getElementById("count");
    const nothing = document.getElementById("nothing");
    const heads = [...table.tHead.rows[0].cells];
    const rows = [...body.rows].map((element) => ({ element, words: element.textContent.toLowerCase() }));
    let sorted = "";

    // The parts of a cell: a name and its details, or a status and its mark, or one text.
    const parts = (cell) => [...(cell.children.length ? cell.children : [cell])].map((part) => part.textContent);
    const filter = () => {
      const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
      const chosen = [...form.querySelectorAll("select")].filter((select) => select.value);
      let shown = 0;
      for (const { element, words: own } of rows) {
        const fits = words.every((word) => own.includes(word)) &&
          chosen.every((select) => parts(element.cells[select.name]).includes(select.value));
        element.hidden = !fits;
        shown += fits;
      }
      const active = chosen.map((select) => `${select.dataset.title} ${select.value}`);
      if (words.length) active.unshift(`search “${words.join(" ")}”`);
      count.textContent = `${shown} of ${rows.length} points` +
        (active.length ? `; filters: ${active.join("; ")}` : "") + (sorted ? `; ${sorted}` : "") + ".";
      nothing.hidden = shown > 0;
    };

    // Numbers are compared as they stand in results.csv; rows without one stay last either way.
    const text = new Intl.Collator("en", { numeric: true });
    const sort = (index) => {
      const head = heads[index];
      const direction = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      const sign = direction === "ascending" ? 1 : -1;
      const numeric = head.classList.contains("num");
      const key = (row) => {
        const cell = row.element.cells[index];
        return numeric ? Number(cell.dataset.v || NaN) : parts(cell)[0];
      };
      const keyed = rows.map((row) => ({ row, value: key(row) }));
      keyed.sort((a, b) => {
        if (!numeric) return sign * text.compare(a.value, b.value);
        if (Number.isNaN(a.value) || Number.isNaN(b.value)) return Number.isNaN(a.value) - Number.isNaN(b.value);
        return sign * (a.value - b.value);
      });
      body.append(...keyed.map(({ row }) => row.element));
      for (const other of heads) other.setAttribute("aria-sort", other === head ? direction : "none");
      sorted = `sorted by ${head.textContent}, ${direction}`;
      filter();
    };

    heads.forEach((head, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(index));
      head.append(button);
      head.setAttribute("aria-sort", "none");
    });
    form.addEventListener("input", filter);
    form.addEventListener("change", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(filter));
    filter();  // a browser may have kept what was typed before a reload
  };

  const copy = async (button) => {
    const code = button.closest("[popover]").querySelector("code");
    let done = true;
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      // No permission, or no secure context: the command is selected, and Ctrl+C still works.
      getSelection().selectAllChildren(code);
      done = document.execCommand("copy");
    }
    const label = button.textContent;
    button.textContent = done ? "Copied" : "Selected: copy it with Ctrl+C";
    setTimeout(() => { button.textContent = label; }, 2000);
  };

  document.addEventListener("DOMContentLoaded", () => {
    startTheme();
    startPoints();
    document.addEventListener("click", (event) => {
      const button = event.target.closest?.(".copy");
      if (button) copy(button);
    });
  });
}
