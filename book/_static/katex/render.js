// Set the formulas that Sphinx writes as <span class="math">\(…\)</span> and <div class="math">\[…\]</div>.
document.querySelectorAll(".math").forEach((element) => {
  for (const node of [...element.childNodes]) {
    const found = node.nodeType === Node.TEXT_NODE && /^\s*\\([([])([^]*)\\[)\]]\s*$/.exec(node.data);
    if (!found) continue;
    const target = document.createElement("span");
    try {
      katex.render(found[2], target, { displayMode: found[1] === "[" });
      node.replaceWith(target);
    } catch (error) {
      console.error(`${error.message} in ${found[2]}`);
    }
  }
});
