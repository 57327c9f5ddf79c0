"""One figure function a kind of picture, one theme. Pictures are SVG set into the page, so that its colours follow the
reader's light, dark or print style; each carries alt text that states its numbers.
"""

import html
import io
import re
from dataclasses import dataclass

import matplotlib
import matplotlib.ticker
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from initmem import metrics

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


@dataclass(frozen=True)
class Picture:
    """A finished figure with its caption, alt text and the runs it was drawn from. Displays itself in a notebook."""

    svg: str
    name: str
    caption: str
    alt: str
    provenance: str

    def _repr_html_(self) -> str:
        label = f'<svg role="img" aria-label="{html.escape(self.alt)}" '
        return (
            f'<figure class="initmem-figure" id="{self.name}">{self.svg.replace("<svg ", label, 1)}'
            f"<figcaption>{html.escape(self.caption)}</figcaption></figure>"
            f'<p class="initmem-provenance">{html.escape(self.provenance)}</p>'
        )

    def __repr__(self) -> str:
        return self.alt


def picture(figure: Figure, name: str, caption: str, alt: str, results: pd.DataFrame) -> Picture:
    """Turn a Matplotlib figure into a Picture: stand-in colours become style-sheet variables, ids become unique."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_THEME):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    width = 1.5 * float(re.search(r'width="([\d.]+)pt"', svg)[1])  # text a little larger than the page's at full size
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', rf'\1 width="100%" style="min-width: {0.48 * width:.0f}px; max-width: {width:.0f}px"', svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)
    svg = re.sub(r"(\d\.\d\d)\d+", r"\1", svg)  # a hundredth of a point is finer than any screen
    svg = re.sub(r"\s*\n\s*", " ", svg)
    for stand_in, style in _STYLES.items():
        svg = svg.replace(stand_in, style)
    return Picture(svg, name, caption, alt, provenance(results))


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


def memory_curves(panels: dict[str, pd.DataFrame], name: str, caption: str) -> Picture:
    """Test accuracy of the selected predictor against σ_w, a panel a preset, a line an optimizer.

    Small marks are seeds, lines their means, bands the 95 % interval over seeds where there are several.
    """
    with matplotlib.rc_context(_THEME):
        figure, axes = _axes(len(panels), 4.6 if len(panels) == 1 else 3.3 * len(panels), 3.9)
        sentences = []
        for ax, (title, results) in zip(axes, panels.items(), strict=True):
            percent = results.assign(accuracy=100 * results["test_accuracy"])
            shared = dict(data=percent, x="sigma_w", y="accuracy", hue="optimizer", palette=_SERIES, ax=ax, legend=False)
            order = [optimizer for optimizer, _ in _optimizers(results)]
            sns.lineplot(
                **shared, style="optimizer", markers=_MARKERS, dashes=False, hue_order=order, style_order=order,
                errorbar=_interval, err_kws=dict(alpha=0.18, linewidth=0), markeredgewidth=0,
            )  # fmt: skip
            if results["seed"].nunique() > 1:
                sns.scatterplot(**shared, hue_order=order, s=10, alpha=0.5, linewidth=0)
            for optimizer, rows in _optimizers(results):
                ax.plot([], [], marker=_MARKERS[optimizer], color=_SERIES[optimizer], label=_with_spread(optimizer, rows))
                ends = metrics.table(rows).iloc[[0, -1]]
                text = [f"{e:.1f} % at σ_w {s:g}" for s, e in zip(ends["σ_w"], ends["test accuracy (%)"])]
                text = [*text, f"spread {metrics.spread(rows):.1f} pp"] if len(metrics.table(rows)) > 1 else text[:1]
                sentences.append(f"{title}, {LABELS[optimizer]}: {', '.join(text)}.")
            ax.set(title=title, xlabel=r"initialization scale $\sigma_w$", ylabel="test accuracy (%)" if ax is axes[0] else "")
            ax.legend(loc="lower left", fontsize=10)
            _room_below(ax, len(order))
    everything = pd.concat(panels.values())
    return picture(figure, name, caption, "Line chart of test accuracy against σ_w. " + " ".join(sentences), everything)


def norm_memory(results: pd.DataFrame, name: str, caption: str) -> Picture:
    """Final against initial Frobenius norm, both logarithmic: the diagonal remembers, a level line has forgotten."""
    with matplotlib.rc_context(_THEME):
        figure, (ax,) = _axes(1, 5.6, 4.2)
        sentences = []
        for optimizer, rows in _optimizers(results):
            means = metrics.table(rows)
            slope = f"slope {metrics.radial_memory(rows):.2f}" if len(means) > 1 else "a single scale, no slope"
            ax.plot(
                means["‖W_0‖"], means["‖W_T‖"], marker=_MARKERS[optimizer], color=_SERIES[optimizer],
                label=f"{LABELS[optimizer]}: {slope.split(' [')[0]}",
            )  # fmt: skip
            sentences.append(
                f"{LABELS[optimizer]}: initial norms {means['‖W_0‖'].iloc[0]:.3g} to {means['‖W_0‖'].iloc[-1]:.3g} become "
                f"{means['‖W_T‖'].iloc[0]:.3g} to {means['‖W_T‖'].iloc[-1]:.3g}, {slope}."
            )
        ends = np.array([results["norm"].str[0].min(), results["norm"].str[0].max()])
        ax.plot(ends, ends, color=_INK, linewidth=1, linestyle=":", label="remembered: slope 1")
        ax.set(xscale="log", yscale="log", xlabel=r"initial norm $\Vert W_0\Vert$", ylabel=r"final norm $\Vert W_T\Vert$")
        ax.legend(loc="upper left", fontsize=10)
        low, high = ax.get_ylim()
        ax.set_ylim(low, high * (high / low) ** 0.45)
        _plain_ticks(ax)
    return picture(figure, name, caption, "Log-log chart of final against initial norm. " + " ".join(sentences), results)


def trajectories(results: pd.DataFrame, name: str, caption: str, seed: int = 0) -> Picture:
    """Norm over the epochs for one seed, a panel for each optimizer, a line for each σ_w."""
    rows = results[results["seed"] == seed].sort_values("sigma_w")
    optimizers = _optimizers(rows)
    stand_ins = {scale: f"#b000{i:02d}" for i, scale in enumerate(sorted(rows["sigma_w"].unique()))}
    columns, sentences = min(2, len(optimizers)), []
    with matplotlib.rc_context(_THEME):
        figure = Figure(figsize=(3.0 * columns + 0.6, 2.4 * -(-len(optimizers) // columns) + 0.7), layout="constrained")
        axes = figure.subplots(-(-len(optimizers) // columns), columns, sharex=True, sharey=True, squeeze=False)
        for ax in axes.flat[len(optimizers) :]:
            ax.remove()
        for ax, (optimizer, mine) in zip(axes.flat, optimizers, strict=False):
            for _, row in mine.iterrows():
                label = rf"$\sigma_w$ = {row['sigma_w']:g}"
                ax.plot(np.arange(len(row["norm"])), row["norm"], color=stand_ins[row["sigma_w"]], label=label, linewidth=1.6)
                sentences.append(f"{LABELS[optimizer]} at σ_w {row['sigma_w']:g}: {row['norm'][0]:.3g} to {row['norm'][-1]:.3g}.")
            ax.set(title=LABELS[optimizer], yscale="log")
            _plain_ticks(ax, x=False)
        for ax in axes.flat[: len(optimizers)][-columns:]:
            ax.set_xlabel("epoch")
        for ax in axes[:, 0]:
            ax.set_ylabel(r"norm $\Vert W\Vert$")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=10)
    drawn = picture(figure, name, caption, f"Norms over epochs, seed {seed}. " + " ".join(sentences), rows)
    svg = drawn.svg
    for i, stand_in in enumerate(stand_ins.values()):
        share = round(100 * i / max(1, len(stand_ins) - 1))
        mix = f"color-mix(in oklch, var(--initmem-2, #d55e00) {share}%, var(--initmem-1, #0072b2))"  # round the hue circle
        svg = svg.replace(stand_in, mix)
    return Picture(svg, drawn.name, drawn.caption, drawn.alt, drawn.provenance)


def spreads(panels: dict[str, pd.DataFrame], paper: dict[str, float], name: str, caption: str) -> Picture:
    """The paper's spreads (optimizer → pp, hollow) beside ours, with intervals and what seeds alone would give."""
    entries = [(f"paper: {LABELS[key]}", key, metrics.Estimate(value, np.nan, np.nan, 0), np.nan) for key, value in paper.items()]
    for title, results in panels.items():
        for key, rows in _optimizers(results):
            if rows["sigma_w"].nunique() > 1:
                label = f"{title.split(' (')[0]}: {LABELS[key]}"
                entries.append((label, key, metrics.spread(rows), metrics.noise_floor(rows)[0]))
    with matplotlib.rc_context(_THEME):
        figure, (ax,) = _axes(1, 5.4, 0.9 + 0.36 * len(entries))
        for y, (_, key, spread, floor) in enumerate(entries):
            colour = _SERIES[key]
            ax.plot([0, spread.value], [y, y], color=colour, linewidth=1.2)
            ax.plot([spread.low, spread.high], [y, y], color=colour, linewidth=5, alpha=0.45, solid_capstyle="butt")
            fill = "full" if spread.n else "none"
            ax.plot(spread.value, y, marker=_MARKERS[key], color=colour, fillstyle=fill, markersize=9, clip_on=False)
            ax.plot([floor] * 2, [y - 0.3, y + 0.3], color=_INK, linewidth=1.4)
        ax.set_yticks(range(len(entries)), [label for label, *_ in entries])
        ax.set(xlabel=r"spread of test accuracy over $\sigma_w$ (pp)", xlim=(0, None), ylim=(len(entries) - 0.5, -0.5))
        ax.grid(False, axis="y")
    sentences = [f"{label}: {f'{spread:.1f}' if spread.n else f'{spread.value:g}'} pp" for label, _, spread, _ in entries]
    return picture(figure, name, caption, "Spreads compared. " + "; ".join(sentences) + ".", pd.concat(panels.values()))


def _optimizers(results: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(name, results[results["optimizer"] == name]) for name in LABELS if name in set(results["optimizer"])]


def _with_spread(optimizer: str, rows: pd.DataFrame) -> str:
    return f"{LABELS[optimizer]}: spread {metrics.spread(rows).value:.1f} pp" if rows["sigma_w"].nunique() > 1 else LABELS[optimizer]


def _interval(values: pd.Series) -> tuple[float, float]:
    estimate = metrics.bootstrap(values.to_numpy(), lambda means: means)
    return estimate.low, estimate.high


def _room_below(ax: Axes, lines: int) -> None:
    """Lower the axis so that the legend covers no line."""
    low, high = ax.get_ylim()
    ax.set_ylim(low - (high - low) * 0.1 * lines, high)


def _plain_ticks(ax: Axes, x: bool = True) -> None:
    for axis in [ax.yaxis, *[ax.xaxis] * x]:
        axis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(matplotlib.ticker.NullLocator())
