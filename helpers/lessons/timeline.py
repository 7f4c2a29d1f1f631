"""The time line of chapter 00."""

from datetime import date

import matplotlib.dates as mdates
import matplotlib.pyplot as plt

from helpers.lessons.language import N_, _


def draw(events):
    """Draw and print `events`, a list of ("2017-08-05", version, what came)."""
    days = [date.fromisoformat(day) for day, *others in events]
    ax = plt.figure(figsize=(9, 0.42 * len(events) + 0.8)).subplots()
    ax.scatter(days, range(len(events)), color="#0072B2", zorder=2)
    for row, (day, (given, version, what)) in enumerate(zip(days, events, strict=True)):
        late = row > len(events) / 2
        ax.annotate(
            f"{version}  {_(what)}",
            (day, row),
            (-9 if late else 9, 0),
            textcoords="offset points",
            ha="right" if late else "left",
            va="center",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )
        print(f"{given}  {version:<6}  {what}")
    ax.invert_yaxis()
    ax.xaxis.set_major_locator(mdates.YearLocator())
    ax.xaxis.set_major_formatter(mdates.DateFormatter("%Y"))
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.grid(False, axis="y")
    ax.set_title(N_("Nearly ten years of writing one's own gradient"))
