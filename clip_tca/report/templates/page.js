"use strict";
// Sorting: a button in a column's head sorts the rows of each section; empty cells stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const numeric = head.classList.contains("number");
      const now = head.getAttribute("aria-sort");
      const first = numeric ? "descending" : "ascending";
      const next = now === "none" ? first : now === "ascending" ? "descending" : "ascending";
      const sign = next === "ascending" ? 1 : -1;
      const text = (row) => row.cells[column].textContent.trim();
      const number = (row) => parseFloat(text(row).replace("−", "-").replaceAll(",", ""));
      const compare = (a, b) =>
        !text(a) || !text(b)
          ? !text(a) - !text(b)
          : sign * (numeric ? number(a) - number(b) : text(a).localeCompare(text(b), undefined, { numeric: true }));
      for (const other of heads) other.setAttribute("aria-sort", other === head ? next : "none");
      for (const body of table.tBodies) {
        const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
        body.append(...rows.sort(compare));
      }
    });
  });
}
// Tables that are wider than their box say so.
function measure() {
  for (const box of document.querySelectorAll(".scroll")) box.classList.toggle("wider", box.scrollWidth > box.clientWidth);
}
addEventListener("resize", measure);
document.addEventListener("toggle", measure, true);
measure();
