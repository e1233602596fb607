// Load KaTeX from this site, and only on pages that have formulas.
const formulas = document.querySelectorAll(".arithmatex");
if (formulas.length) {
  const base = new URL("katex/", document.currentScript.src);
  const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: new URL("katex.min.css", base) });
  const script = Object.assign(document.createElement("script"), { src: new URL("katex.min.js", base) });
  script.onload = () => formulas.forEach((part) => {
    const source = part.textContent.trim();
    katex.render(source.slice(2, -2), part, { displayMode: source.startsWith("\\["), throwOnError: false });
  });
  document.head.append(style, script);
}
