// Paper is white: print the light page, whatever the screen shows.
addEventListener("beforeprint", () => {
  const { dataset } = document.documentElement;
  dataset.screenTheme = dataset.theme;
  dataset.theme = "light";
});
addEventListener("afterprint", () => {
  const { dataset } = document.documentElement;
  dataset.theme = dataset.screenTheme;
});
