// A word of code stays on one line: without this, a line may end after the hyphens of a flag.
// A longer word than a phone's line may break after the name of its flag.
const WORD = /((?<!\S)(?:\S{2,44}(?!\S)|'?--?[\w.]+))/;
const content = document.querySelector(".md-content");
const walker = document.createTreeWalker(content, NodeFilter.SHOW_TEXT);
const texts = [];
while (walker.nextNode()) {
  if (walker.currentNode.parentElement.closest("code")) texts.push(walker.currentNode);
}
for (const text of texts) {
  const parts = text.data.split(WORD).map((part, n) => {
    if (n % 2 === 0) return part; // between words
    const word = document.createElement("span");
    word.className = "word";
    word.textContent = part;
    return word;
  });
  text.replaceWith(...parts);
}

// A table that does not fit becomes a list of its cells, each with the heading of its column.
const tables = [...content.querySelectorAll("table:not([class])")];
for (const table of tables) {
  const headings = [...table.querySelectorAll("th")].map((cell) => cell.textContent);
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, n) => (cell.dataset.heading = headings[n]));
  }
}
function stack() {
  for (const table of tables) {
    delete table.dataset.stacked;
    if (table.scrollWidth > table.clientWidth) table.dataset.stacked = "";
  }
}
stack();
addEventListener("resize", stack);
