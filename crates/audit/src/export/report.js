"use strict";
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const body = table.tBodies[0];
  table.querySelectorAll("th").forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const rising = head.getAttribute("aria-sort") !== "ascending";
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const number = (text) => (text === "" ? NaN : Number(text));
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        const difference = number(x) - number(y);
        const order = Number.isNaN(difference) ? x.localeCompare(y) : difference;
        return rising ? order : -order;
      });
      body.append(...rows);
    });
  });
}
for (const input of document.querySelectorAll("input[data-filter]")) {
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase();
    for (const row of document.getElementById(input.dataset.filter).tBodies[0].rows) {
      row.hidden = !row.textContent.toLowerCase().includes(words);
    }
  });
}
