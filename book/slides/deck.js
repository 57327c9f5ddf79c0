// Arrow keys, space and page keys move by a slide; n shows the speaker's notes; the address holds the slide.
const slides = [...document.querySelectorAll("section")];
const here = () => slides.findIndex((slide) => slide.getBoundingClientRect().bottom > innerHeight / 2);
const go = (i) => slides[Math.max(0, Math.min(slides.length - 1, i))].scrollIntoView();
slides.forEach((slide, i) => (slide.id ||= String(i + 1)));
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const step = { ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": event.shiftKey ? -1 : 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1 }[event.key];
  const end = { Home: 0, End: slides.length - 1 }[event.key];
  if (event.key === "n") document.documentElement.classList.toggle("notes");
  else if (step !== undefined) go(here() + step);
  else if (end !== undefined) go(end);
  else return;
  event.preventDefault();
  history.replaceState(null, "", `#${slides[here()].id}`);
});
