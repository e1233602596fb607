// Filters: a row stays if it has every word and every chosen trait; of the matrix, the numbers of these rows stay.
const form = document.getElementById("filters");
const [matrix, list] = document.querySelectorAll("table.sortable");
const rows = [...list.tBodies[0].rows];
const details = (row) => row.querySelector("template").content;
const words = new Map(rows.map((row) => [row, (row.textContent + details(row).textContent).toLowerCase()]));
const trait = (row, name) => row.querySelector(`[data-trait="${name}"]`).textContent;

function filter() {
  const wanted = form.elements.words.value.toLowerCase().split(/\s+/);
  const chosen = [...form.querySelectorAll("select")].filter((select) => select.selectedIndex);
  const shown = new Set();
  for (const row of rows) {
    row.hidden =
      !wanted.every((word) => words.get(row).includes(word)) ||
      chosen.some((select) => trait(row, select.name) !== select.value);
    if (!row.hidden) shown.add(row.dataset.row);
  }
  form.querySelector("output").textContent = `${shown.size} of ${rows.length} rows`;
  const kept = new Set([0]);
  for (const body of matrix.tBodies) {
    for (const row of [...body.rows].filter((one) => !one.classList.contains("group"))) {
      const links = [...row.querySelectorAll("a")];
      for (const link of links) link.hidden = !shown.has(link.dataset.row);
      const left = links.filter((link) => !link.hidden);
      row.hidden = !left.length;
      for (const link of left) kept.add(link.closest("td").cellIndex);
    }
    body.hidden = [...body.rows].every((row) => row.hidden || row.classList.contains("group"));
  }
  for (const row of matrix.rows) {
    if (!row.classList.contains("group")) [...row.cells].forEach((cell, i) => { cell.hidden = !kept.has(i); });
  }
}

// The drawer: what a row's button keeps in the template behind it.
const drawer = document.getElementById("drawer");
list.tBodies[0].addEventListener("click", (event) => {
  if (!event.target.closest("button")) return;
  drawer.querySelector("div").replaceChildren(details(event.target.closest("tr")).cloneNode(true));
  drawer.showModal();
});

form.hidden = false;
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
form.querySelector("button").addEventListener("click", () => {
  form.reset();
  filter();
});
filter(); // a browser may keep what was chosen when a page is loaded again
