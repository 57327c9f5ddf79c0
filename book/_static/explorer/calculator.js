// The forgetting calculator: initmem/clocks.py in a few lines, and the shipped recipes that lie nearest.
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("calculator-data").textContent);
  const root = document.getElementById("calculator"), form = root.querySelector("form"), fields = form.elements;
  const part = (name) => document.getElementById(`calculator-${name}`);
  const LABELS = { sgd: "SGD", momentum: "SGD + momentum", adam: "Adam", adamw: "AdamW", muon: "Muon" };
  const SERIES = { sgd: 2, momentum: 5, adam: 1, adamw: 3, muon: 4 };
  const CLOCKS = { t_sgd: "T_SGD", t_l2: "T_L2", t_adapt: "T_adapt" };
  const SYMBOLS = { sgd: "circle", momentum: "square", adam: "triangle", adamw: "diamond", muon: "star" };
  const number = (value) => (value && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5) ? (+value.toPrecision(3)).toExponential() : String(+value.toPrecision(3)));
  const nameOf = (r) => `${LABELS[r.optimizer]}, η ${number(r.lr)}, ${r.weight_decay ? `λ ${number(r.weight_decay)}, ` : ""}b ${r.batch_size}, ` +
    `${r.epochs} epochs, ${r.dataset} (${r.train_size} images)${r.arch === "resnet9" ? "" : `, ResNet-${r.arch.slice(6)}`}${r.precision === "bf16" ? ", bf16" : ""}`;

  // As initmem.clocks.run_clocks and active_clock: the last short batch of an epoch is dropped, the learning rate constant.
  const clocks = (r) => {
    const steps = r.epochs * Math.floor(r.train_size / r.batch_size);
    return { steps, t_sgd: (r.lr ** 2 * steps) / r.batch_size, t_l2: r.weight_decay * r.lr * steps, t_adapt: r.lr * steps };
  };
  const driving = (r) => (["adam", "adamw", "muon"].includes(r.optimizer) ? "t_adapt" : r.weight_decay ? "t_l2" : "t_sgd");

  // ---- The form: each number with a slider on a logarithmic scale ----

  const NUMBERS = ["lr", "weight_decay", "batch_size", "train_size", "epochs"];
  const sliders = Object.fromEntries([...form.querySelectorAll("input[type=range]")].map((slider) => [slider.dataset.for, slider]));
  const STEPS = 200;
  for (const slider of Object.values(sliders)) Object.assign(slider, { min: 0, max: STEPS, step: 1 });
  const place = (name) => {
    const slider = sliders[name], value = +fields[name].value, { low, high } = slider.dataset;
    slider.value = value > 0 ? Math.round((STEPS * Math.log(value / low)) / Math.log(high / low)) : 0;
    slider.setAttribute("aria-valuetext", fields[name].value);
  };
  const slide = (slider) => {
    const { low, high, zero, whole } = slider.dataset, value = low * (high / low) ** (slider.value / STEPS);
    fields[slider.dataset.for].value = zero !== undefined && +slider.value === 0 ? 0 : whole !== undefined ? Math.round(value) : +value.toPrecision(2);
    slider.setAttribute("aria-valuetext", fields[slider.dataset.for].value);
  };

  const paper = Object.entries(data.paper).map(([name, regime]) => ({
    optimizer: name.startsWith("SGD") ? "sgd" : "adam", batch_size: 128, train_size: 40000, ...regime, title: `the paper: ${name}`,
  }));
  const starts = [...data.recipes.map((recipe) => ({ ...recipe, title: nameOf(recipe) })), ...paper];
  fields.start.replaceChildren(new Option("your own", ""), ...starts.map((start, i) => new Option(start.title, i)));
  const begin = (start) => {
    for (const name of ["optimizer", ...NUMBERS]) fields[name].value = start[name];
    NUMBERS.forEach(place);
  };

  // ---- The answer ----

  const result = (r) => `${r.spread.toFixed(1)} percentage points${r.n > 1 ? ` (95 % interval ${r.low.toFixed(1)} to ${r.high.toFixed(1)}, n = ${r.n} seeds)` : " (n = 1 seed, no interval)"}, ` +
    `over ${r.scales} scales from ${number(r.least)} to ${number(r.most)}${r.pilot ? ", in pilot runs" : ""}`;
  const update = () => {
    const wrong = [...form.querySelectorAll("input[type=number]")].find((input) => !input.checkValidity());
    const recipe = { optimizer: fields.optimizer.value, ...Object.fromEntries(NUMBERS.map((name) => [name, +fields[name].value])) };
    const problem = wrong ? `${wrong.labels[0].firstChild.data.trim()}: ${wrong.validationMessage}` :
      recipe.batch_size > recipe.train_size ? "A batch cannot hold more images than there are to train on." : "";
    if (problem) {
      for (const name of Object.keys(CLOCKS)) part(name).textContent = "–";
      part("words").textContent = problem;
      part("figure").replaceChildren();
      return;
    }
    const times = clocks(recipe), clock = driving(recipe), now = times[clock], label = CLOCKS[clock];
    for (const name of Object.keys(CLOCKS)) {
      part(name).textContent = number(times[name]);
      part(name).dataset.value = times[name];
      part(name).parentElement.classList.toggle("calculator-driving", name === clock);
    }
    const like = data.recipes.filter((other) => other.driving === clock).map((other) => ({ ...other, time: clocks(other)[clock] }));
    const own = like.filter((other) => other.optimizer === recipe.optimizer);
    const begun = fields.start.value === "" ? null : starts[fields.start.value].key; // of several at one distance: that, the plainest, the best known
    const distance = (other) => +Math.abs(Math.log(other.time / now)).toPrecision(6);
    const nearest = d3.sort(own.length ? own : like, distance, (other) => other.key !== begun, (other) => other.arch !== "resnet9",
      (other) => other.precision === "bf16", (other) => -other.n)[0];
    const factor = nearest && Math.max(now / nearest.time, nearest.time / now);
    part("words").textContent = `${times.steps.toLocaleString("en")} steps. ` + (!nearest ? `No shipped recipe is driven by ${label}, so there is nothing to compare with.` :
      `The nearest shipped recipe${own.length ? " of the same optimizer" : ""} by ${label} is ${nameOf(nearest)}: ${label} ${number(nearest.time)}, ` +
      `${factor < 1.005 ? "the same" : `${now > nearest.time ? "below" : "above"} yours by a factor of ${number(factor)}`}. Its test accuracy spread by ${result(nearest)}.` +
      (factor > 10 ? " That is far away: expect little from the comparison." : ""));

    const times_ = [now, ...like.map((other) => other.time)], width = Math.max(260, part("figure").clientWidth);
    const plot = Plot.plot({
      width, height: 300, marginLeft: 48, marginRight: 40, marginBottom: 40, grid: true, style: { fontSize: "12px" },
      x: { type: "log", label: `${label} →`, domain: [d3.min(times_) / 2, d3.max(times_) * 2], ticks: Math.max(3, Math.round(width / 110)), tickFormat: number },
      y: { label: "↑ spread (pp)", domain: [0, (d3.max(like, (other) => other.high ?? other.spread) || 1) * 1.05] },
      color: { type: "ordinal", domain: Object.keys(LABELS), range: Object.values(SERIES).map((i) => `var(--initmem-${i})`) },
      symbol: { type: "ordinal", domain: Object.keys(LABELS), range: Object.values(SYMBOLS) },
      marks: [
        Plot.ruleX([now], { stroke: "var(--pst-color-primary)", strokeWidth: 2 }),
        Plot.ruleX(like.filter((other) => other.low !== null), { x: "time", y1: "low", y2: "high", stroke: "optimizer", strokeWidth: 4, strokeOpacity: 0.4 }),
        Plot.dot(like, { x: "time", y: "spread", stroke: "optimizer", symbol: "optimizer", strokeWidth: 2, r: 5,
          fill: (other) => (other.pilot ? "var(--pst-color-background)" : `var(--initmem-${SERIES[other.optimizer]})`),
          tip: true, title: (other) => `${nameOf(other)}\n${label} ${number(other.time)}\nspread ${result(other).replace("percentage points", "pp")}` }),
        Plot.text(like.length > 12 ? [] : like.filter((other) => !other.pilot), { x: "time", y: "spread", text: (other) => `${LABELS[other.optimizer]}, ${other.dataset}`, dx: 9, textAnchor: "start", fill: "currentColor" }),
      ],
    });
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `Spread against ${label}; this recipe is at ${number(now)}. ` +
      like.map((other) => `${nameOf(other)}: ${label} ${number(other.time)}, spread ${other.spread.toFixed(1)} percentage points`).join("; "));
    for (const group of plot.querySelectorAll("g[aria-label]")) group.removeAttribute("aria-label"); // no name without a role
    part("figure").replaceChildren(plot);
  };

  root.hidden = false;
  document.documentElement.classList.add("explorer-alive");
  form.addEventListener("input", (event) => {
    const { target } = event;
    if (target.type === "range") slide(target);
    else if (NUMBERS.includes(target.name)) place(target.name);
    if (target === fields.start) target.value !== "" && begin(starts[target.value]);
    else fields.start.value = "";
    update();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  const first = d3.greatest(starts.map((start, i) => ({ start, i })), ({ start }) => (start.optimizer === "sgd" && start.arch === "resnet9" && start.precision !== "bf16" && start.driving ? start.n : 0));
  begin(first.start);
  fields.start.value = first.i;
  let width = root.clientWidth;
  new ResizeObserver(() => root.clientWidth !== width && ((width = root.clientWidth), update())).observe(root);
  update();
})();
