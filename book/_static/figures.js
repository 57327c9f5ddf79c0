// Beside every figure's data: the picture as an SVG file in today's colours, and the way to the runs.
document.addEventListener("DOMContentLoaded", () => {
  const explorer = document.querySelector('a[href$="explorer.html"]');
  for (const data of document.querySelectorAll("a.initmem-csv")) {
    const figure = data.parentElement.previousElementSibling;
    const svg = figure && figure.querySelector("svg");
    if (!svg) continue;
    const link = document.createElement("a");
    link.textContent = "Picture (SVG)";
    link.href = "#" + figure.id;
    link.download = figure.id + ".svg";
    link.addEventListener("click", () => {
      const copy = svg.cloneNode(true);
      const styled = "[class], [style]"; // the others have what they are in, or what refers to them
      const drawn = svg.querySelectorAll(styled);
      copy.querySelectorAll(styled).forEach((part, i) => {
        const style = getComputedStyle(drawn[i]); // a file knows nothing of the page's variables
        for (const name of ["fill", "stroke", "font-family"])
          if (part.hasAttribute("class") || part.style.getPropertyValue(name)) part.style.setProperty(name, style.getPropertyValue(name));
      });
      for (const rules of copy.querySelectorAll("style")) rules.textContent = rules.textContent.replace(/\b(fill|stroke|font-family): [^;}]*;?/g, "");
      copy.style.background = getComputedStyle(document.body).backgroundColor;
      copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
      link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
    });
    data.after(" ", link);
    if (explorer) {
      const runs = document.createElement("a");
      runs.textContent = "Its runs";
      runs.href = explorer.href + "#recipes=" + data.dataset.recipes + "&seeds=" + data.dataset.seeds;
      link.after(" ", runs);
    }
  }
});
