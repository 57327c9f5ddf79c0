"""One figure function a kind of picture, one theme. Pictures are SVG set into the page, so that its colours follow the
reader's light, dark or print style; each carries alt text that states its numbers.
"""

import html
import io
import re
import urllib.parse
import zlib
from dataclasses import dataclass

import matplotlib
import matplotlib.patches
import matplotlib.ticker
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from initmem import metrics
from initmem.clocks import active_clock, run_clocks
from initmem.store import RECIPE_FIELDS, RUN_FIELDS

LABELS = {"sgd": "SGD", "momentum": "SGD + momentum", "adam": "Adam", "adamw": "AdamW", "muon": "Muon"}
_MARKERS = {"sgd": "o", "momentum": "s", "adam": "^", "adamw": "v", "muon": "D"}
# Matplotlib draws with stand-ins; the page's style sheet says what they are (book/_static/custom.css). The fallbacks,
# after Okabe and Ito, serve a notebook outside the book.
_INK, _GRID = "#a0000e", "#a0000f"
_SERIES = dict(zip(LABELS, ["#a00002", "#a00005", "#a00001", "#a00003", "#a00004"], strict=True))
_STYLES = {_INK: "var(--initmem-ink, currentColor)", _GRID: "var(--initmem-grid, #8884)"} | {
    f"#a0000{i}": f"var(--initmem-{i}, {fallback})"
    for i, fallback in enumerate(["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b"], 1)
}
_THEME = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.labelcolor": _INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "initmem",
    "lines.linewidth": 2,
    "lines.markersize": 6,
}


Cells = dict[str, pd.DataFrame]  # rows of each recipe, by its name in the ledger


@dataclass(frozen=True)
class Picture:
    """A finished figure with its caption, alt text and the runs it was drawn from. Displays itself in a notebook."""

    svg: str
    narrow: str
    """The same for a narrow screen, which the book's style sheet shows in place of the first."""
    name: str
    caption: str
    alt: str
    provenance: str
    csv: str = ""
    """The runs behind it as comma-separated values: a row a recipe and σ_w, means over seeds."""
    recipes: tuple[str, ...] = ()
    """Keys of the recipes behind it (`recipe_keys`), by which with its seeds the explorer finds its runs."""
    seeds: tuple[int, ...] = ()

    def _repr_html_(self) -> str:
        recipes, seeds = ",".join(self.recipes), ",".join(map(str, self.seeds))
        label = f'<svg role="img" aria-label="{html.escape(self.alt)}" '
        wide, narrow = (svg.replace("<svg ", label, 1) for svg in (self.svg, self.narrow))
        return (
            f'<figure class="initmem-figure" id="{self.name}"><div class="initmem-wide">{wide}</div>'
            f'<div class="initmem-narrow" style="display: none">{narrow}</div><figcaption>{subscripts(html.escape(self.caption))}</figcaption></figure>'
            f'<p class="initmem-provenance">{html.escape(self.provenance)} <a class="initmem-csv" data-recipes="{recipes}" data-seeds="{seeds}" download="{self.name}.csv" '
            f'href="data:text/csv;charset=utf-8,{urllib.parse.quote(self.csv)}">Data (CSV)</a></p>'
        )

    def __repr__(self) -> str:
        return self.alt


SYMBOL = re.compile(r"(σ|τ|T|‖W)_([A-Za-z0-9]+)")  # \w would take the ² of σ_w² along


def subscripts(text: str) -> str:
    """HTML in which symbols such as σ_w and T_SGD have real subscripts."""
    return SYMBOL.sub(r"\1<sub>\2</sub>", text)


class NoPicture(str):
    """What stands in a picture's place where there is nothing to draw. Displays itself in a notebook."""

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self)}</p>"


def _one_scale(cells: Cells) -> bool:
    return any(rows["sigma_w"].nunique() < 2 for rows in cells.values())


_NEEDS_SCALES = "This picture needs at least two values of σ_w."


def picture(figure: Figure, name: str, caption: str, alt: str, results: pd.DataFrame) -> Picture:
    """Turn a Matplotlib figure into a Picture: drawn once for wide and, its panels stacked, once for narrow screens."""
    wide = _svg(figure)
    _stack(figure)
    narrow = _svg(figure)
    seeds = tuple(sorted(results["seed"].unique().tolist()))
    return Picture(wide, narrow, name, caption, alt, provenance(results), _csv(results), recipe_keys(results), seeds)


def _stack(figure: Figure) -> None:
    """Lay a figure out again for a phone: one panel above the other, at a width that leaves the text legible."""
    axes, (_, height) = figure.axes, figure.get_size_inches()
    rows = axes[0].get_gridspec().nrows
    for place, ax in zip(figure.add_gridspec(len(axes)), axes, strict=True):
        ax.set_subplotspec(place)
        ax.tick_params(labelleft=True)
        ax.set_ylabel(ax.get_ylabel() or axes[0].get_ylabel())
    figure.set_size_inches(4.2, min(height / rows, 3.6) * len(axes) if len(axes) > 1 else height)
    figure.get_layout_engine().set(h_pad=0.1)


def _svg(figure: Figure) -> str:
    """A figure as SVG for a page: stand-in colours become style-sheet variables, ids become unique."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_THEME):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = _lean(re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL))
    width = 1.5 * float(re.search(r'width="([\d.]+)pt"', svg)[1])  # text a little larger than the page's at full size
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', rf'\1 width="100%" style="max-width: {width:.0f}px"', svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)
    # A tenth of a point is finer than a screen shows. Places only: neither the text between the tags nor styles.
    svg = re.sub(r' (?!style|class)\w+="[^"<>]*"(?=[^<>]*>)', lambda place: re.sub(r"\d+\.\d\d+", lambda number: f"{float(number[0]):.1f}", place[0]), svg)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    for stand_in, style in _STYLES.items():
        svg = svg.replace(stand_in, style)
    return re.sub(r"#b00(0\d\d|199)", _mixed, svg)


def _lean(svg: str) -> str:
    """Say once what Matplotlib says on every mark: a style becomes a class of this picture alone, unused ids go.

    A page of four figures, each drawn for wide and narrow screens, loses a third of its weight. Names come from the
    content: the book as one page holds the pictures of all chapters.
    """
    name = f"f{zlib.crc32(svg.encode()):08x}"
    ids = {old: f"{name}-{i}" for i, old in enumerate(dict.fromkeys(re.findall(r'(?:href="|url\()#([^")]+)', svg)))}
    svg = re.sub(r' id="([^"]*)"', lambda found: f' id="{ids[found[1]]}"' if found[1] in ids else "", svg)
    svg = re.sub(r'(href="#|url\(#)([^")]+)', lambda found: found[1] + ids[found[2]], svg).replace("xlink:href", "href")
    svg = re.sub(r' clip-path="([^"]*)"(?: style="([^"]*)")?', r' style="clip-path: \1; \2"', svg)
    svg = re.sub(r' xmlns:xlink="[^"]*"| transform="rotate\(-0 [^)]*\)"', "", svg)
    styles: dict[str, int] = {}

    def to_class(tag: re.Match) -> str:
        if " id=" in tag[0]:  # what <use> refers to keeps its own: rules of the page need not reach its copies
            return tag[0]
        return re.sub(r' style="([^"]*)"', lambda found: f' class="s{styles.setdefault(found[1], len(styles))}"', tag[0])

    svg = re.sub(r">\s+<", "><", re.sub(r"<[^>]+>", to_class, svg))
    while (bare := re.sub(r"<g>((?:(?!</?g\b).)*)</g>", r"\1", svg, flags=re.DOTALL)) != svg:  # groups that say nothing
        svg = bare
    clipped = r'(<g class="\w+">)<use [^>]*/></g>(?:\1<use [^>]*/></g>)+'  # every mark of a scatter by itself: together
    svg = re.sub(clipped, lambda row: row[1] + row[0].replace(row[1], "").replace("</g>", "") + "</g>", svg)
    rules = "".join(f"#{name} .s{i} {{{style}}}" for style, i in styles.items())
    svg = re.sub(r"(<style[^>]*>)(.*?)(</style>)", lambda found: f"{found[1]}#{name} {found[2]}{rules}{found[3]}", svg, count=1, flags=re.DOTALL)
    return svg.replace("<svg ", f'<svg id="{name}" ', 1)


def recipe_keys(results: pd.DataFrame) -> tuple[str, ...]:
    """Eight hexadecimal digits for each recipe and copy of the data among the rows, in order of first appearance."""
    recipes = results[[*RECIPE_FIELDS, "data_fingerprint"]].drop_duplicates().to_dict("records")
    return tuple(f"{zlib.crc32(repr(list(recipe.values())).encode()):08x}" for recipe in recipes)


def _csv(results: pd.DataFrame) -> str:
    fixed = [name for name in RUN_FIELDS if name not in ("seed", "momentum", "val_size")]
    last = results.assign(runs=1, initial_norm=results["norm"].str[0], final_norm=results["norm"].str[-1])
    how = {"test_accuracy": "mean", "last_test_accuracy": "mean", "initial_norm": "mean", "final_norm": "mean", "runs": "sum"}
    return last.groupby(fixed, as_index=False).agg(how).to_csv(index=False, float_format="%.5g")


def _mixed(stand_in: re.Match) -> str:
    share = 100 if stand_in[1] == "199" else int(stand_in[1])
    return f"color-mix(in oklch, var(--initmem-2, #d55e00) {share}%, var(--initmem-1, #0072b2))"  # round the hue circle


def provenance(results: pd.DataFrame) -> str:
    """One sentence on the runs behind a figure: how many, of what data, on what, when, how long."""
    results = results[results["status"] != "failed"]
    hours = results["wall_seconds"].sum() / 3600
    took = f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"
    copies = " and ".join(f"{source} ({copy})" for source, copy in _pairs(results, "data_source", "data_fingerprint"))
    devices = ", ".join(sorted(results["device"].unique()))
    revisions = ", ".join(sorted(set(results["git_revision"]) - {""}))
    dates = sorted(results["date"].unique())
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    precision = " and ".join(sorted(results["precision_used"].unique()))
    torch = ", ".join(sorted(results["torch_version"].unique()))
    return (
        f"{len(results)} runs on {copies}; {precision} on {devices}, torch {torch}"
        f"{', revision ' + revisions if revisions else ''}; {took} in all; {when}."
    )


def _pairs(results: pd.DataFrame, *columns: str) -> list[tuple]:
    return list(results[list(columns)].drop_duplicates().itertuples(index=False, name=None))


def _axes(columns: int, width: float, height: float) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, np.atleast_1d(figure.subplots(1, columns))


def label(name: str) -> str:
    """A cell's name as a figure shows it."""
    return LABELS.get(name, name)


def _looks(cells: Cells) -> dict[str, dict]:
    """Colour and marker of each cell: its optimizer's, or a step of a ramp where cells share one and are steps of something."""
    optimizers = [rows["optimizer"].iloc[0] for rows in cells.values()]
    if len(set(optimizers)) == len(cells):
        return {name: _look(optimizer) for name, optimizer in zip(cells, optimizers, strict=True)}
    markers = "osD^vP*Xph"
    return {name: dict(color=_ramp(i, len(cells)), marker=markers[i % len(markers)]) for i, name in enumerate(cells)}


def _shared_looks(panels: dict[str, Cells]) -> dict[str, dict]:
    """A cell looks the same in every panel, also where a panel lacks some."""
    return _looks({name: rows for cells in panels.values() for name, rows in cells.items()})


def _look(optimizer: str) -> dict[str, str]:
    return dict(color=_SERIES[optimizer], marker=_MARKERS[optimizer])


def _ramp(step: int, steps: int) -> str:
    """A stand-in that `picture` turns into a colour between the first and the second of the page's series."""
    return f"#b000{round(100 * step / max(1, steps - 1)):02d}" if step < steps - 1 or steps == 1 else "#b00199"


def memory_curves(panels: dict[str, Cells], name: str, caption: str, column: str = "test_accuracy") -> Picture:
    """An accuracy against σ_w, a panel a preset, a line a cell: by default the test accuracy of the selected predictor.

    Small marks are seeds, lines their means, bands the 95 % interval over seeds where there are three or more: of two, Student's
    interval is wider than any picture.
    """
    what = {"test_accuracy": "test accuracy", "best_train_accuracy": "best training accuracy"}[column]
    with matplotlib.rc_context(_THEME):
        figure, axes = _axes(len(panels), 4.6 if len(panels) == 1 else 3.3 * len(panels), 3.9)
        sentences, looks = [], _shared_looks(panels)
        for ax, (title, cells) in zip(axes, panels.items(), strict=True):
            rows = pd.concat([rows.assign(cell=cell) for cell, rows in cells.items()])
            values = rows["train_accuracy"].map(max) if column == "best_train_accuracy" else rows[column]
            rows["percent"] = 100 * values.astype(float)
            colors = {cell: looks[cell]["color"] for cell in cells}
            shared = dict(data=rows, x="sigma_w", y="percent", hue="cell", hue_order=[*cells], palette=colors, ax=ax, legend=False)
            sns.lineplot(
                **shared, style="cell", style_order=[*cells], markers={cell: looks[cell]["marker"] for cell in cells},
                dashes=False, errorbar=_interval, err_kws=dict(alpha=0.18, linewidth=0), markeredgewidth=0,
            )  # fmt: skip
            if rows["seed"].nunique() > 1:
                sns.scatterplot(**shared, s=10, alpha=0.5, linewidth=0)
            for cell, mine in cells.items():
                ax.plot([], [], label=_with_spread(cell, mine, column), **looks[cell])
                means = rows[rows["cell"] == cell].groupby("sigma_w")["percent"].mean()
                text = [f"{means.loc[scale]:.1f} % at σ_w {scale:g}" for scale in dict.fromkeys([means.index[0], means.index[-1]])]
                if len(means) > 1 and column == "test_accuracy":
                    text.append(f"spread {metrics.spread(mine):.1f} pp")
                sentences.append(f"{title}, {label(cell)}: {', '.join(text)}.")
            ax.set(title=title, xlabel=r"initialization scale $\sigma_w$", ylabel=f"{what} (%)" if ax is axes[0] else "")
            ax.yaxis.set_major_locator(matplotlib.ticker.FixedLocator([tick for tick in ax.get_yticks() if tick <= 100]))
            ax.legend(loc="lower left", fontsize=10 if len(cells) < 6 else 8)
            _room_below(ax, len(cells))
    return picture(figure, name, caption, f"Line chart of {what} against σ_w. " + " ".join(sentences), _all(panels))


def norm_memory(cells: Cells, name: str, caption: str) -> Picture:
    """Final against initial Frobenius norm, both logarithmic: the diagonal remembers, a level line has forgotten."""
    with matplotlib.rc_context(_THEME):
        figure, (ax,) = _axes(1, 5.6, 4.2)
        sentences, looks = [], _looks(cells)
        for cell, rows in cells.items():
            means = metrics.table(rows)
            slope = f"slope {metrics.radial_memory(rows):.2f}" if len(means) > 1 else "a single scale, no slope"
            ax.plot(means["‖W_0‖"], means["‖W_T‖"], label=f"{label(cell)}: {slope.split(' [')[0]}", **looks[cell])
            sentences.append(
                f"{label(cell)}: initial norms {means['‖W_0‖'].iloc[0]:.3g} to {means['‖W_0‖'].iloc[-1]:.3g} become "
                f"{means['‖W_T‖'].iloc[0]:.3g} to {means['‖W_T‖'].iloc[-1]:.3g}, {slope}."
            )
        first = pd.concat(cells.values())["norm"].str[0]
        ax.plot([first.min(), first.max()], [first.min(), first.max()], color=_INK, linewidth=1, linestyle=":", label="remembered: slope 1")
        ax.set(xscale="log", yscale="log", xlabel=r"initial norm $\Vert W_0\Vert$", ylabel=r"final norm $\Vert W_T\Vert$")
        ax.legend(loc="upper left", fontsize=10)
        low, high = ax.get_ylim()
        ax.set_ylim(low, high * (high / low) ** (0.09 * (len(cells) + 1)))
        _plain_ticks(ax)
    return picture(figure, name, caption, "Log-log chart of final against initial norm. " + " ".join(sentences), pd.concat(cells.values()))


def trajectories(cells: Cells, name: str, caption: str, seed: int = 0, column: str = "norm", theory: str | None = None) -> Picture:
    """The norm, or another curve of the table, over the epochs for one seed: a panel for each cell, a line for each σ_w.

    `theory` names a column with what was foretold, drawn dotted over each line.
    """
    cells = {cell: rows[rows["seed"] == seed].sort_values("sigma_w") for cell, rows in cells.items()}
    rows = pd.concat(cells.values())
    scales = sorted(rows["sigma_w"].unique())
    columns, sentences = min(2, len(cells)), []
    what, scale = {"norm": (r"norm $\Vert W\Vert$", 1), "train_accuracy": ("training accuracy (%)", 100)}.get(column, ("norm of the convolutions", 1))
    with matplotlib.rc_context(_THEME):
        figure = Figure(figsize=(3.0 * columns + 0.6, 2.4 * -(-len(cells) // columns) + 0.7), layout="constrained")
        same_time = len({len(curve) for curve in rows[column]}) == 1
        axes = figure.subplots(-(-len(cells) // columns), columns, sharex=same_time, sharey=True, squeeze=False)
        for ax in axes.flat[len(cells) :]:
            ax.remove()
        for ax, (cell, mine) in zip(axes.flat, cells.items(), strict=False):
            for _, row in mine.iterrows():
                curve = scale * np.asarray(row[column])
                color = _ramp(scales.index(row["sigma_w"]), len(scales))
                start = 0 if column != "train_accuracy" else 1
                ax.plot(np.arange(len(curve)) + start, curve, color=color, label=rf"$\sigma_w$ = {row['sigma_w']:g}", linewidth=1.6)
                foretold = f" (theory: {row[theory][-1]:.3g})" if theory else ""
                sentences.append(f"{label(cell)} at σ_w {row['sigma_w']:g}: {curve[0]:.3g} to {curve[-1]:.3g}{foretold}.")
                if theory:
                    ax.plot(row[theory], color=_INK, linestyle=(0, (1, 2)), linewidth=1.6, label="theory" if row.name == mine.index[-1] else None)
            ax.set(title=label(cell))
            if column != "train_accuracy":
                ax.set_yscale("log")
                _plain_ticks(ax, x=False)
        for ax in axes.flat[: len(cells)][-columns:]:
            ax.set_xlabel("epoch")
            ax.tick_params(labelbottom=True)  # a removed panel below took them away
        for ax in axes[:, 0]:
            ax.set_ylabel(what)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=10)
    plain = "Training accuracies in percent" if column == "train_accuracy" else "Norms"
    return picture(figure, name, caption, f"{plain} over epochs, seed {seed}. " + " ".join(sentences), rows)


def spreads(panels: dict[str, Cells], paper: dict[str, float], name: str, caption: str) -> Picture:
    """The paper's spreads (optimizer → pp, hollow) beside ours, with intervals and what seeds alone would give."""
    entries = [(f"paper: {LABELS[key]}", _look(key), metrics.Estimate(value, np.nan, np.nan, 0), np.nan) for key, value in paper.items()]
    for title, cells in panels.items():
        for cell, rows in cells.items():
            if rows["sigma_w"].nunique() > 1:
                entry = f"{title.split(' (')[0]}: {label(cell)}"
                entries.append((entry, _shared_looks(panels)[cell], metrics.spread(rows), metrics.noise_floor(rows)[0]))
    with matplotlib.rc_context(_THEME):
        figure, (ax,) = _axes(1, 5.4, 0.9 + 0.36 * len(entries))
        for y, (_, look, spread, floor) in enumerate(entries):
            ax.plot([0, spread.value], [y, y], color=look["color"], linewidth=1.2)
            ax.plot([spread.low, spread.high], [y, y], color=look["color"], linewidth=5, alpha=0.45, solid_capstyle="butt")
            ax.plot(spread.value, y, fillstyle="full" if spread.n else "none", markersize=9, clip_on=False, **look)
            ax.plot([floor] * 2, [y - 0.3, y + 0.3], color=_INK, linewidth=1.4)
        ax.set_yticks(range(len(entries)), [entry for entry, *_ in entries])
        ax.set(xlabel=r"spread of test accuracy over $\sigma_w$ (pp)", xlim=(0, None), ylim=(len(entries) - 0.5, -0.5))
        ax.grid(False, axis="y")
    sentences = [f"{entry}: {f'{spread:.1f}' if spread.n else f'{spread.value:g}'} pp" for entry, _, spread, _ in entries]
    return picture(figure, name, caption, "Spreads compared. " + "; ".join(sentences) + ".", _all(panels))


def spread_against(panels: dict[str, dict[str, Cells]], x: str, name: str, caption: str) -> Picture | NoPicture:
    """Spread against one field of the recipes (`batch_size`, `epochs`), with intervals: a panel a preset, a line a group of cells."""
    everything = [cells for lines in panels.values() for cells in lines.values()]
    if not everything or any(_one_scale(cells) for cells in everything):
        return NoPicture(_NEEDS_SCALES)
    names = {"batch_size": "batch size b", "epochs": "epochs"}
    with matplotlib.rc_context(_THEME):
        figure, axes = _axes(len(panels), 5.4 if len(panels) == 1 else 4.1 * len(panels), 3.8)
        sentences, series = [], list(_SERIES.values())
        for ax, (panel, lines) in zip(axes, panels.items(), strict=True):
            for i, (title, cells) in enumerate(lines.items()):
                points = sorted((metrics.recipe(rows)[x], metrics.spread(rows)) for rows in cells.values())
                at, spreads = zip(*points, strict=True)
                error = np.array([[s.value - s.low, s.high - s.value] for s in spreads]).T
                style = dict(color=series[i], marker="os^"[i], linestyle=["-", "--", ":"][i])
                ax.errorbar(at, [s.value for s in spreads], yerr=np.clip(error, 0, None), label=title, capsize=3, **style)
                sentences.append(f"{panel}, {title}: " + ", ".join(f"{s:.1f} pp at {a}" for a, s in points) + ".")
            ax.set(xscale="log", xlabel=names[x], ylabel=r"spread over $\sigma_w$ (pp)" if ax is axes[0] else "", title=panel)
            ax.set_ylim(0, 1.05 * ax.get_ylim()[1])  # matplotlib leaves room for the range of the values, too little from 0 on
            ax.set_xticks(at, [str(a) for a in at])
            ax.minorticks_off()
            if len(lines) > 1:
                ax.legend(fontsize=10)
    rows = pd.concat([rows for cells in everything for rows in cells.values()]).drop_duplicates("run_id")
    return picture(figure, name, caption, f"Spread against {names[x]}. " + " ".join(sentences), rows)


def spread_map(cells: Cells, name: str, caption: str) -> Picture | NoPicture:
    """The spread over learning rate and L2 as a map of numbers, with lines of equal T_L2; T_SGD stands below each rate."""
    if _one_scale(cells):
        return NoPicture(_NEEDS_SCALES)
    bases = {cell: metrics.run_of(rows) for cell, rows in cells.items()}
    rates, decays = (sorted({getattr(run, field) for run in bases.values()}) for field in ("lr", "weight_decay"))
    values = np.full((len(decays), len(rates)), np.nan)
    clocks, sentences = np.full_like(values, np.nan), []
    fits = np.ones_like(values)
    for cell, run in bases.items():
        at = decays.index(run.weight_decay), rates.index(run.lr)
        values[at], clocks[at] = metrics.spread(cells[cell]).value, run_clocks(run).t_l2
        fits[at] = metrics.interpolated_share(cells[cell]).value
        sentences.append(f"η {run.lr:g}, λ {run.weight_decay:g}: {metrics.spread(cells[cell]):.1f} pp.")
    with matplotlib.rc_context(_THEME):
        figure, (ax,) = _axes(1, 5.8, 0.9 + 0.75 * len(decays))
        top = np.nanmax(values)
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                box = matplotlib.patches.Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=_SERIES["sgd"], alpha=0.75 * value / top, linewidth=0)
                ax.add_patch(box)
                fitted = "" if fits[row, column] == 1 else f"\n{100 * fits[row, column]:.0f} % fit"
                ax.text(column, row, f"{value:.1f}{fitted}", ha="center", va="center", fontsize=12 if not fitted else 9)
        if len(rates) > 1 and (np.array(decays) > 0).sum() > 1:
            grid = np.where(np.isfinite(clocks) & (clocks > 0), clocks, np.nan)
            lines = ax.contour(np.arange(len(rates)), np.arange(len(decays)), np.log10(grid), levels=[-1, 0, np.log10(3)], colors=_INK, linewidths=1.2, linestyles="--")
            ax.clabel(lines, fmt={level: f"$T_{{L2}}$ = {10**level:.2g}" for level in lines.levels}, fontsize=10)
        t_sgd = [next(run_clocks(run).t_sgd for run in bases.values() if run.lr == rate) for rate in rates]
        ax.set_xticks(range(len(rates)), [f"{rate:g}\n{float(f'{clock:.1g}'):g}" for rate, clock in zip(rates, t_sgd, strict=True)])
        ax.set_yticks(range(len(decays)), [f"{decay:g}" for decay in decays])
        ax.set(xlabel=r"learning rate $\eta$, and below it $T_{SGD}$", ylabel=r"L2 coefficient $\lambda$", xlim=(-0.5, len(rates) - 0.5), ylim=(-0.5, len(decays) - 0.5))
        ax.grid(False)
    return picture(figure, name, caption, "Map of the spread over learning rate and L2. " + " ".join(sentences), pd.concat(cells.values()))


def spread_on_clock(cells: Cells, name: str, caption: str) -> Picture | NoPicture:
    """Spread of every recipe against the clock that drives it, coloured by what kind of recipe it is."""
    if _one_scale(cells):
        return NoPicture(_NEEDS_SCALES)
    kinds = {"t_sgd": r"SGD: $T_{SGD}$", "t_l2": r"SGD with L2: $T_{L2}$", "t_adapt": r"adaptive: $T_{adapt}$"}
    with matplotlib.rc_context(_THEME):
        figure, (ax,) = _axes(1, 6.2, 4.2)
        sentences = []
        for kind, color, marker in zip(kinds, ["sgd", "adamw", "adam"], "osD", strict=True):
            mine = {cell: rows for cell, rows in cells.items() if active_clock(metrics.run_of(rows)) == kind}
            for i, (cell, rows) in enumerate(mine.items()):
                spread, at = metrics.spread(rows), getattr(run_clocks(metrics.run_of(rows)), kind)
                error = [[max(0, spread.value - spread.low)], [max(0, spread.high - spread.value)]] if spread.n > 1 else None
                fits = metrics.interpolated_share(rows).value == 1
                ax.errorbar(
                    at, spread.value, yerr=error, color=_SERIES[color], marker=marker, elinewidth=1,
                    fillstyle="full" if fits else "none", label=kinds[kind] if i == 0 else None, linestyle="none",
                )  # fmt: skip
                sentences.append(f"{label(cell)}: clock {at:.2g}, spread {spread.value:.1f} pp.")
        ax.set(xscale="log", xlabel="the recipe's driving clock", ylabel=r"spread over $\sigma_w$ (pp)", ylim=(0, None))
        ax.legend(fontsize=10)
    return picture(figure, name, caption, "Spread against driving clock. " + " ".join(sentences), pd.concat(cells.values()).drop_duplicates("run_id"))


def one_curve(cells: Cells, name: str, caption: str) -> Picture | NoPicture:
    """Test accuracy against η (left) and against η/σ_w² or η/σ_w (right), a colour for each σ_w."""
    if _one_scale(cells):
        return NoPicture(_NEEDS_SCALES)
    power = 2 if metrics.recipe(next(iter(cells.values())))["optimizer"] in ("sgd", "momentum") else 1
    rows = pd.concat(cells.values())
    scales = sorted(rows["sigma_w"].unique())
    means = rows.groupby(["sigma_w", "lr"], as_index=False)["test_accuracy"].mean()
    with matplotlib.rc_context(_THEME):
        figure, axes = _axes(2, 7.0, 3.9)
        for i, scale in enumerate(scales):
            mine = means[means["sigma_w"] == scale].sort_values("lr")
            style = dict(color=_ramp(i, len(scales)), marker="osD^vP*"[i % 7], label=rf"$\sigma_w$ = {scale:g}")
            axes[0].plot(mine["lr"], 100 * mine["test_accuracy"], **style)
            axes[1].plot(mine["lr"] / scale**power, 100 * mine["test_accuracy"], **{**style, "linestyle": "none"})
        by = r"$\eta/\sigma_w^2$" if power == 2 else r"$\eta/\sigma_w$"
        axes[0].set(xscale="log", xlabel=r"learning rate $\eta$", ylabel="test accuracy (%)", title="each scale its own curve")
        axes[1].set(xscale="log", xlabel=f"effective rate at the start {by}", title="the same runs, one axis")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=10)
    shares = [f"{what} explains {100 * metrics.collapse(list(cells.values()), p).value:.0f} % of the variance" for what, p in [("η alone", 0), ("the effective rate", power)]]
    return picture(figure, name, caption, f"Test accuracy against learning rate and against effective rate. A curve in {'; in '.join(shares)}.", rows)


def accuracy_on_angle(cells: Cells, name: str, caption: str) -> Picture | NoPicture:
    """Mean test accuracy against how far the kernels have turned at the selected epoch: a line a cell, a mark a σ_w."""
    if _one_scale(cells):
        return NoPicture(_NEEDS_SCALES)
    with matplotlib.rc_context(_THEME):
        figure, (ax,) = _axes(1, 5.6, 4.0)
        sentences, looks = [], _looks(cells)
        for cell, rows in cells.items():
            means = rows.assign(angle=metrics.turned(rows)).groupby("sigma_w")[["angle", "test_accuracy"]].mean()
            ax.plot(means["angle"], 100 * means["test_accuracy"], label=label(cell), **looks[cell])
            ends = [f"{row.angle:.3g}° and {100 * row.test_accuracy:.1f} % at σ_w {scale:g}" for scale, row in means.iloc[[0, -1]].iterrows()]
            sentences.append(f"{label(cell)}: {', '.join(ends)}.")
        ax.set(xscale="log", xlabel="angle from the start, median over kernels (degrees)", ylabel="test accuracy (%)")
        ax.legend(loc="lower right", fontsize=10)
        _plain_ticks(ax, y=False)
    return picture(figure, name, caption, "Line chart of test accuracy against the angle. " + " ".join(sentences), pd.concat(cells.values()))


def gradient_paths(cells: Cells, name: str, caption: str) -> Picture | NoPicture:
    """Σ ‖W‖²‖g‖² of the convolutions of SGD against η/σ_w², mean over seeds, a colour for each σ_w."""
    if any(metrics.recipe(rows)["weight_decay"] for rows in cells.values()):
        return NoPicture("This picture needs runs without weight decay, which pulls on the norm as well.")
    rows = pd.concat(cells.values())
    rows = rows.assign(path=[metrics.gradient_path(row) for _, row in rows.iterrows()])
    means = rows.groupby(["sigma_w", "lr"], as_index=False)["path"].mean()
    scales = sorted(means["sigma_w"].unique())
    with matplotlib.rc_context(_THEME):
        figure, (ax,) = _axes(1, 5.8, 4.2)
        for i, scale in enumerate(scales):
            mine = means[means["sigma_w"] == scale].sort_values("lr")
            ax.plot(mine["lr"] / scale**2, mine["path"], color=_ramp(i, len(scales)), marker="osD^vP*"[i % 7], label=rf"$\sigma_w$ = {scale:g}")
        ax.set(xscale="log", yscale="log", xlabel=r"effective rate at the start $\eta/\sigma_w^2$", ylabel=r"$\sum\Vert W\Vert^2\Vert g\Vert^2$")
        ax.legend(fontsize=10)
    ends = means.assign(rate=means["lr"] / means["sigma_w"] ** 2).sort_values("rate").iloc[[0, -1]]
    words = " and ".join(f"{row['path']:.2g} at an effective rate of {row['rate']:.2g}" for _, row in ends.iterrows())
    return picture(figure, name, caption, f"Sum of squared gradients along the way, against the effective rate: {words}.", rows)


def disagreement_maps(cells: Cells, name: str, caption: str) -> Picture:
    """Share of test images on which networks of two scales disagree, a map for each cell, mean over seeds."""
    maps = {cell: metrics.disagreement_map(rows) for cell, rows in cells.items()}
    top = max(table.to_numpy().max() for table in maps.values())
    with matplotlib.rc_context(_THEME):
        figure, axes = _axes(len(maps), 3.5 * len(maps), 3.6)
        sentences = []
        for ax, (cell, table) in zip(axes, maps.items(), strict=True):
            for (row, column), value in np.ndenumerate(table.to_numpy()):
                box = matplotlib.patches.Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=_looks(cells)[cell]["color"], alpha=0.75 * value / top, linewidth=0)
                ax.add_patch(box)
                ax.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=10)
            names, limits = [f"{scale:g}" for scale in table], (-0.5, len(table) - 0.5)
            ax.set_xticks(range(len(table)), names)
            ax.set_yticks(range(len(table)), names)
            ax.set(title=label(cell), xlabel=r"$\sigma_w$", ylabel=r"$\sigma_w$" if ax is axes[0] else "", xlim=limits, ylim=limits)
            ax.grid(False)
            sentences.append(f"{label(cell)}: {table.iloc[0, -1]:.1f} % between the smallest and the largest scale.")
    return picture(figure, name, caption, "Maps of disagreement between scales, in percent of test images. " + " ".join(sentences), pd.concat(cells.values()))


def _all(panels: dict[str, Cells]) -> pd.DataFrame:
    return pd.concat([rows for cells in panels.values() for rows in cells.values()]).drop_duplicates("run_id")


def _with_spread(cell: str, rows: pd.DataFrame, column: str) -> str:
    if rows["sigma_w"].nunique() < 2 or column != "test_accuracy":
        return label(cell)
    return f"{label(cell)}: spread {metrics.spread(rows).value:.1f} pp"


def _interval(values: pd.Series) -> tuple[float, float]:
    if len(values) < 3:
        return values.mean(), values.mean()
    estimate = metrics.bootstrap(values.to_numpy(), lambda means: means)
    return estimate.low, estimate.high


def _room_below(ax: Axes, lines: int) -> None:
    """Lower the axis so that the legend covers no line."""
    low, high = ax.get_ylim()
    ax.set_ylim(low - (high - low) * 0.1 * lines, high)


def _plain_ticks(ax: Axes, x: bool = True, y: bool = True) -> None:
    for axis in [*[ax.yaxis] * y, *[ax.xaxis] * x]:
        axis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(matplotlib.ticker.NullLocator())
