// The run explorer. The page holds the data (book/_ext/explorer.py); one function draws everything from the form's state.
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const root = document.getElementById("explorer"), form = root.querySelector("form");
  const part = (name) => document.getElementById(`explorer-${name}`);
  const LABELS = { sgd: "SGD", momentum: "SGD + momentum", adam: "Adam", adamw: "AdamW", muon: "Muon" };
  const SERIES = { sgd: 2, momentum: 5, adam: 1, adamw: 3, muon: 4 }; // the book's colour of each optimizer
  const CLOCKS = { t_sgd: "T_SGD", t_l2: "T_L2", t_adapt: "T_adapt" };
  const NAMES = { resnet9: "ResNet-9", resnet56: "ResNet-56", resnet110: "ResNet-110" };
  const MANY = 1500; // dots that a figure can bear
  const number = (value) => (value === null ? "–" : value && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5) ? value.toExponential() : String(value));

  for (const recipe of data.recipes) {
    recipe.data = `${recipe.dataset}, ${recipe.train_size} images${recipe.preset ? ` (${recipe.preset})` : ""}`;
    recipe.network = `${NAMES[recipe.arch]}, width ${recipe.width}`;
    recipe.name = `${LABELS[recipe.optimizer]}, η ${number(recipe.lr)}, ` +
      `${recipe.weight_decay ? `λ ${number(recipe.weight_decay)}, ` : ""}b ${recipe.batch_size}, ${recipe.epochs} epochs, ${recipe.network}`;
  }
  for (const same of d3.group(data.recipes, (recipe) => recipe.data + recipe.name).values()) {
    if (same.length > 1) for (const recipe of same) recipe.name += `, ${recipe.precision}`; // what else could tell them apart
  }
  const { norm, ...columns } = data.runs;
  const runs = columns.id.map((_, i) => {
    const run = Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, column[i]]));
    return { ...run, norm: norm[i], stamp: data.stamps[run.stamp], recipe: data.recipes[run.recipe] };
  });

  // ---- The form ----

  const values = (field) => [...new Set(data.recipes.map((recipe) => recipe[field]))].sort(d3.ascending);
  const shown = (field, value) => (field === "optimizer" ? LABELS[value] : typeof value === "number" ? number(value) : value);
  const fill = (name, options) => form.elements[name].replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  const FILTERS = ["network", "lr", "weight_decay", "batch_size", "epochs", "precision"];
  const counts = d3.rollup(runs, (all) => all.length, (run) => run.recipe.data);
  fill("data", d3.sort(counts, ([, n]) => -n).map(([name]) => [name, name])); // never mixed: no "all" here
  for (const field of FILTERS) fill(field, [["", "all"], ...values(field).map((value) => [value, shown(field, value)])]);
  // A clean first picture: of the chosen data, the network, batch size and epochs that most runs have.
  const settle = (dataset, asDefault) => {
    const mine = runs.filter((run) => run.recipe.data === dataset && run.seed < data.pilot);
    for (const field of FILTERS) {
      const [common] = d3.greatest(d3.rollup(mine, (all) => all.length, (run) => run.recipe[field]), ([, n]) => n) ?? [""];
      const value = ["network", "batch_size", "epochs", "precision"].includes(field) ? String(common) : "";
      if (asDefault) for (const option of form.elements[field].options) option.defaultSelected = option.value === value;
      form.elements[field].value = value;
    }
  };
  settle(form.elements.data.value, true);
  const scales = [...new Set(runs.map((run) => run.sigma))].sort(d3.ascending);
  for (const end of ["from", "to"]) fill(end, scales.map((scale) => [scale, number(scale)]));
  form.elements.to.lastElementChild.defaultSelected = true;
  for (const optimizer of Object.keys(LABELS).filter((name) => values("optimizer").includes(name))) {
    const label = document.createElement("label"), box = document.createElement("input");
    Object.assign(box, { type: "checkbox", name: "optimizer", value: optimizer, defaultChecked: true });
    label.append(box, ` ${LABELS[optimizer]}`);
    part("optimizers").append(label);
  }

  const state = () => {
    const given = new FormData(form);
    return { ...Object.fromEntries(given), optimizers: given.getAll("optimizer"), pilot: given.has("pilot") };
  };
  let only = null; // keys of the recipes, and the seeds, that an address asks for
  const ask = (keys, seeds) => {
    only = keys && { keys, seeds };
    part("only").hidden = !keys;
    if (!keys) return history.replaceState(null, "", location.pathname + location.search);
    const sets = [...new Set(data.recipes.filter((recipe) => keys.has(recipe.key)).map((recipe) => recipe.data))];
    part("only-data").textContent = sets.length > 1 ? `It has runs on ${sets.join(" and on ")}: choose them one at a time under Data. ` : "";
  };
  // A run passes if it meets every filter but one, which lets us say what each choice of that one would leave.
  const passes = (run, s, except) =>
    (except === "data" || run.recipe.data === s.data) &&
    (!only || (only.keys.has(run.recipe.key) && (!only.seeds || only.seeds.has(run.seed)))) &&
    s.optimizers.includes(run.recipe.optimizer) &&
    (s.pilot || run.seed < data.pilot) &&
    run.sigma >= Math.min(s.from, s.to) && run.sigma <= Math.max(s.from, s.to) &&
    FILTERS.every((field) => field === except || s[field] === "" || String(run.recipe[field]) === s[field]);

  // ---- Figures ----

  const styleOf = (field, chosen) => {
    const domain = field === "optimizer" ? Object.keys(LABELS).filter((name) => chosen.has(name)) : [...chosen].sort(d3.ascending);
    const mix = (i) => `color-mix(in oklch, var(--initmem-2) ${Math.round((100 * i) / Math.max(1, domain.length - 1))}%, var(--initmem-1))`;
    const range = domain.map((value, i) => (field === "optimizer" ? `var(--initmem-${SERIES[value]})` : mix(i)));
    const marks = ["circle", "triangle", "square", "diamond", "star", "cross", "wye"];
    const symbols = domain.map((_, i) => marks[i % marks.length]);
    return { color: { type: "ordinal", domain, range }, symbol: { type: "ordinal", domain, range: symbols } };
  };
  const draw = (name, label, options) => {
    const place = part(name), width = Math.max(260, place.clientWidth);
    const plot = Plot.plot({ width, height: 300, marginLeft: 48, marginBottom: 40, grid: true, style: { fontSize: "12px" }, ...options });
    const svg = plot.matches("svg") ? plot : plot.querySelector("svg");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", label);
    for (const group of svg.querySelectorAll("g[aria-label]")) group.removeAttribute("aria-label"); // no name without a role
    place.replaceChildren(plot);
    return plot;
  };
  const logTicks = (low, high) => {
    const all = d3.range(Math.floor(Math.log10(low)), Math.log10(high) + 1).flatMap((power) => [1, 2, 5].map((digit) => +`${digit}e${power}`));
    const inside = all.filter((value) => value >= low * 0.99 && value <= high * 1.01);
    return inside.length > 7 ? inside.filter((value) => /^1/.test(value.toExponential())) : inside;
  };
  const range = (numbers) => (numbers.length ? `${number(d3.min(numbers))} to ${number(d3.max(numbers))}` : "none");

  // As metrics.spread: over the seeds that have every scale, max − min over the scales of the mean.
  const spread = (rows, accuracy) => {
    const sigmas = new Set(rows.map((run) => run.sigma));
    const seeds = d3.groups(rows, (run) => run.seed).filter(([, mine]) => new Set(mine.map((run) => run.sigma)).size === sigmas.size);
    const means = d3.rollups(seeds.flatMap(([, mine]) => mine), (group) => d3.mean(group, (run) => run[accuracy]), (run) => run.sigma);
    const value = sigmas.size > 1 && seeds.length ? d3.max(means, (m) => m[1]) - d3.min(means, (m) => m[1]) : null;
    return { value, seeds: seeds.length, sigmas: [...sigmas] };
  };

  let selected = [];
  const update = () => {
    for (const name of FILTERS) for (const option of form.elements[name].options) option.disabled = false; // else FormData leaves it out
    const s = state(), field = s.colour, accuracy = s.accuracy;
    for (const name of FILTERS) {
      const possible = new Set(runs.filter((run) => passes(run, s, name)).map((run) => String(run.recipe[name])));
      for (const option of form.elements[name].options) option.disabled = option.value !== "" && !possible.has(option.value);
    }
    selected = runs.filter((run) => passes(run, s));
    const order = Object.keys(LABELS);
    const groups = d3.sort(d3.groups(selected, (run) => run.recipe), ([recipe]) => order.indexOf(recipe.optimizer), ([recipe]) => recipe.lr,
      ([recipe]) => recipe.weight_decay, ([recipe]) => recipe.batch_size, ([recipe]) => recipe.epochs);
    part("count").textContent = `${selected.length} of ${runs.length} runs, ${groups.length} ${groups.length === 1 ? "recipe" : "recipes"}` +
      (selected.length ? "" : ": no run meets every choice above; widen one of them") +
      (selected.length > MANY ? `: over ${MANY.toLocaleString("en")}, so means alone are drawn; narrow a choice to see single runs` : "");
    const kind = (run) => run.recipe[field], style = styleOf(field, new Set(selected.map(kind)));
    const key = { ...style, color: { ...style.color }, x: { insetLeft: 6, insetRight: 6 } };

    part("legend").replaceChildren(...style.color.domain.map((value, i) => {
      const entry = document.createElement("span");
      const shape = d3.symbol(d3[`symbol${style.symbol.range[i].replace(/^./, (c) => c.toUpperCase())}`], 60)();
      entry.innerHTML = `<svg width="14" height="14" viewBox="-7 -7 14 14" aria-hidden="true"><path d="${shape}" fill="${style.color.range[i]}"/></svg>`;
      entry.append(shown(field, value));
      return entry;
    }));

    const means = groups.flatMap(([recipe, mine]) => d3.rollups(mine, (all) => d3.mean(all, (run) => run[accuracy]), (run) => run.sigma)
      .map(([sigma, mean]) => ({ recipe, sigma, mean }))).sort((a, b) => a.sigma - b.sigma);
    const title = (run) => `${run.recipe.name}\nσ_w ${number(run.sigma)}, seed ${run.seed}: ${run[accuracy].toFixed(1)} %${run.diverged ? ", diverged" : ""}`;
    const measured = groups.map(([recipe, mine]) => ({ recipe, ...spread(mine, accuracy), rows: mine }));
    const words = (m) => `${m.recipe.name}: spread ${m.value === null ? "not measurable" : `${m.value.toFixed(1)} percentage points`}`;
    const memory = draw("memory", `Test accuracy against σ_w. ${measured.slice(0, 8).map(words).join("; ")}.`, {
      ...key,
      x: { type: "log", label: "initialization scale σ_w →", ticks: logTicks(d3.min(scales), d3.max(scales)), tickFormat: number, ...key.x },
      y: { label: "↑ test accuracy (%)", nice: true },
      marks: [
        Plot.lineY(means, { x: "sigma", y: "mean", z: "recipe", stroke: kind, strokeWidth: 2 }),
        Plot.dot(selected.length > MANY ? [] : selected, { x: "sigma", y: accuracy, fill: kind, symbol: kind, r: selected.length > 800 ? 1.6 : 2.6, fillOpacity: 0.6, title, tip: true }),
      ],
    });
    memory.addEventListener("click", () => memory.value && open(memory.value.id));
    memory.style.cursor = "pointer";

    const paths = groups.flatMap(([recipe, mine]) => d3.groups(mine, (run) => run.sigma).flatMap(([sigma, same], z) =>
      data.epochs[recipe.epochs].map((epoch, i) => ({
        recipe, sigma, epoch, id: `${recipe.name} ${sigma}`,
        norm: Math.exp(d3.mean(same.filter((run) => run.norm[i] > 0), (run) => Math.log(run.norm[i]))),
      })).filter((point) => point.norm > 0)));
    const ends = paths.map((point) => point.norm);
    draw("norms", `Norm of all kernels over the epochs, from ${range(paths.filter((p) => p.epoch === 0).map((p) => +p.norm.toPrecision(3)))} at the start to ` +
      `${range(paths.filter((p) => p.epoch === p.recipe.epochs).map((p) => +p.norm.toPrecision(3)))} at the end.`, {
      ...key,
      x: { label: "epoch →", ...key.x },
      y: { type: "log", label: "↑ norm ‖W‖", ticks: ends.length ? logTicks(d3.min(ends), d3.max(ends)) : [], tickFormat: number },
      marks: [
        Plot.lineY(paths, { x: "epoch", y: "norm", z: "id", stroke: kind, strokeWidth: 1.3, strokeOpacity: 0.8 }),
        Plot.tip(paths, Plot.pointer({ x: "epoch", y: "norm",
          title: (p) => `${p.recipe.name}\nσ_w ${number(p.sigma)}, epoch ${p.epoch}: ‖W‖ ${p.norm.toPrecision(3)}` })),
      ],
    });

    const points = measured.filter((m) => m.value !== null).map((m) => ({ ...m, clock: CLOCKS[m.recipe.driving], time: m.recipe[m.recipe.driving] }));
    const used = Object.values(CLOCKS).filter((clock) => points.some((point) => point.clock === clock));
    part("clocks").replaceChildren();
    const places = used.map((clock) => {
      const place = document.createElement("div");
      place.id = `explorer-clock-${clock}`;
      part("clocks").append(place);
      return [clock, place];
    });
    part("clocks").style.cssText = `display: grid; gap: 0 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr))`;
    const top = d3.max(points, (point) => point.value);
    for (const [clock] of places) {
      const mine = points.filter((point) => point.clock === clock), times = mine.map((point) => point.time);
      const [low, high] = [d3.min(times) / 2, d3.max(times) * 2];
      draw(`clock-${clock}`, `Spread against ${clock}. ${mine.slice(0, 12).map((m) => `${m.recipe.name}: ${clock} ${number(m.time)}, ${m.value.toFixed(1)} percentage points`).join("; ")}.`, {
        ...style,
        height: 240,
        x: { type: "log", label: `${clock} →`, domain: [low, high], ticks: logTicks(low, high), tickFormat: number },
        y: { label: "↑ spread (pp)", domain: [0, top * 1.05 || 1] },
        marks: [Plot.dot(mine, {
          x: "time", y: "value", fill: (m) => kind(m), symbol: (m) => kind(m), r: 5, tip: true,
          title: (m) => `${m.recipe.name}\n${clock} ${number(m.time)}, spread ${m.value.toFixed(1)} pp\n${m.sigmas.length} scales, ${m.seeds} seeds`,
        })],
      });
    }

    part("recipes").replaceChildren(...measured.map((m) => {
      const row = document.createElement("tr");
      Object.assign(row.dataset, { recipe: data.recipes.indexOf(m.recipe), spread: m.value ?? "" });
      const cells = [m.recipe.name, ...Object.keys(CLOCKS).map((clock) => number(m.recipe[clock]) + (clock === m.recipe.driving ? " ★" : "")),
        m.value === null ? "–" : m.value.toFixed(1), range(m.sigmas), m.seeds, m.rows.length];
      row.append(...cells.map((text, i) => {
        const cell = document.createElement(i ? "td" : "th");
        if (!i) cell.scope = "row";
        cell.textContent = text;
        return cell;
      }));
      return row;
    }));

    const chooser = part("run"), before = chooser.value;
    chooser.replaceChildren(...groups.map(([recipe, mine]) => {
      const group = document.createElement("optgroup");
      group.label = recipe.name;
      group.append(...mine.map((run) => new Option(`σ_w ${number(run.sigma)}, seed ${run.seed}: ${run[accuracy].toFixed(1)} %`, run.id)));
      return group;
    }));
    if (selected.some((run) => run.id === before)) chooser.value = before;
    provenance();
  };

  // ---- One run ----

  const provenance = () => {
    const run = runs.find((one) => one.id === part("run").value);
    if (!run) return part("provenance").replaceChildren();
    const { recipe, stamp } = run;
    const facts = {
      "run": run.id, "recipe": recipe.name, "σ_w": number(run.sigma), "seed": run.seed + (run.seed >= data.pilot ? ", a pilot run" : ""),
      "outcome": run.diverged ? "diverged" : "finished",
      "test accuracy": `${run.selected.toFixed(2)} % (selected at epoch ${run.best}), ${run.last.toFixed(2)} % (last checkpoint)`,
      "training accuracy": run.train === null ? "–" : `${run.train.toFixed(2)} %, last epoch`,
      "norm ‖W‖": `${number(run.norm[0])} → ${number(run.norm[run.norm.length - 1])}`,
      "clocks": Object.entries(CLOCKS).map(([name, label]) => `${label} ${number(recipe[name])}${name === recipe.driving ? " ★" : ""}`).join(", "),
      "data": `${stamp.data_source}, copy ${recipe.data_fingerprint}; ${recipe.train_size} to train, ${recipe.val_size} to validate`,
      "computed": `${stamp.date}, ${number(run.seconds)} s on ${stamp.device}, ${stamp.precision_used}, threads: ${stamp.threads}, lanes: ${stamp.lanes}`,
      "software": `initmem ${stamp.package_version}${stamp.git_revision ? ` (${stamp.git_revision})` : ""}, engine ${recipe.engine}, torch ${stamp.torch_version}`,
    };
    part("provenance").replaceChildren(...Object.entries(facts).flatMap(([name, fact]) => {
      const [term, text] = ["dt", "dd"].map((tag) => document.createElement(tag));
      term.textContent = name;
      text.textContent = fact;
      return [term, text];
    }));
  };
  const choose = () => {
    history.replaceState(null, "", `#run=${part("run").value}`); // an address to cite
    provenance();
  };
  const open = (id) => {
    part("run").value = id;
    choose();
    part("run").scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    part("run").focus({ preventScroll: true });
  };

  root.hidden = false;
  document.documentElement.classList.add("explorer-alive");
  form.addEventListener("change", (event) => {
    if (event.target.name === "data" && !only) settle(event.target.value);
    update();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    ask(null);
    setTimeout(update);
  });
  part("only").querySelector("button").addEventListener("click", () => form.reset());
  part("run").addEventListener("change", choose);
  const linked = runs.find((run) => location.hash === `#run=${run.id}`);
  if (linked) {
    form.elements.data.value = linked.recipe.data;
    for (const field of FILTERS) form.elements[field].value = "";
    form.elements.pilot.checked = linked.seed >= data.pilot;
  }
  const [, keys = "", seeds] = location.hash.match(/^#recipes=([\w,]+)(?:&seeds=([\d,]+))?$/) ?? [];
  const behind = keys.split(",");
  const found = data.recipes.filter((recipe) => behind.includes(recipe.key));
  if (found.length) {
    ask(new Set(behind), seeds && new Set(seeds.split(",").map(Number)));
    const first = d3.least(found, (recipe) => behind.indexOf(recipe.key)); // the figure's first panel
    form.elements.data.value = first.data;
    for (const field of FILTERS) form.elements[field].value = "";
    const varies = (field) => new Set(found.filter((recipe) => recipe.data === first.data).map((recipe) => recipe[field])).size > 1;
    form.elements.colour.value = ["optimizer", ...FILTERS].find(varies) ?? "optimizer";
  }
  addEventListener("hashchange", () => /^#(run|recipes)=/.test(location.hash) && location.reload()); // an address pasted into an open page
  let width = root.clientWidth;
  new ResizeObserver(() => root.clientWidth !== width && ((width = root.clientWidth), update())).observe(root);
  update();
  if (linked) open(linked.id);
})();
