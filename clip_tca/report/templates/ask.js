// Answers: a click chooses one for its picture; the link saves all of them as CSV.
const questions = [...document.querySelectorAll(".question")];
const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
const chosen = (question) => question.querySelector('[aria-pressed="true"]')?.dataset.answer ?? "";
function update() {
  const lines = questions.map((question) => `${quoted(question.dataset.file)},${quoted(chosen(question))}`);
  const text = ["file,answer", ...lines, ""].join("\n");
  document.getElementById("save").href = `data:text/csv;charset=utf-8,${encodeURIComponent(text)}`;
  const done = questions.filter(chosen).length;
  document.getElementById("count").textContent = `${done} of ${questions.length} answered`;
}
for (const question of questions) {
  for (const button of question.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      for (const other of question.querySelectorAll("button")) other.setAttribute("aria-pressed", other === button);
      update();
    });
  }
}
update();
