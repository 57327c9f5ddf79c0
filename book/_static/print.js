// Paper is white and cannot be unfolded: print the light page, whatever the screen shows, with its boxes open.
addEventListener("beforeprint", () => {
  for (const box of document.querySelectorAll("details.sd-dropdown")) box.open = true;
  const { dataset } = document.documentElement;
  dataset.screenTheme = dataset.theme;
  dataset.theme = "light";
});
addEventListener("afterprint", () => {
  const { dataset } = document.documentElement;
  dataset.theme = dataset.screenTheme;
});
