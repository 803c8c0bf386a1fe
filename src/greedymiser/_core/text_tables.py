"""Tables as aligned text for terminals and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import ClassVar, Self, SupportsIndex, TypeVar, overload

Item = TypeVar("Item")

# Rows of a table in a notebook; longer ones are cut in the middle.
MOST_ROWS = 40

# Inherits the colours of the page, light or dark.
STYLE = (
    "<style scoped>.miser{max-width:100%;overflow-x:auto}"
    ".miser td,.miser th{padding:.15em .7em;text-align:right;white-space:nowrap}"
    ".miser .l{text-align:left}.miser td.l:last-child{white-space:normal;min-width:16em}"
    ".miser td:empty::after{content:'\\a0'}"
    # No caption of the table, which would be as wide as that.
    ".miser>p{position:sticky;left:0;margin:.2em 0;font-weight:600;font-size:.9em}"
    "@media(max-width:40em){.miser td,.miser th{padding:.15em .3em}"
    ".miser td.l:last-child{min-width:8em}}</style>"
)


def aligned(rows: Sequence[Sequence[str]], left: Collection[int]) -> str:
    """Lines of a table; columns in ``left`` are flush left, the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def html_table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int]
) -> str:
    """The same as HTML, with a caption; what is in the cells is text, and no markup.

    Examples
    --------
    >>> "<td class='l'>a&lt;b</td>" in html_table("names", ["name"], [["a<b"]], left={0})
    True
    """
    shown = [_html_row("td", row, left) for row in rows]
    if len(rows) > MOST_ROWS:
        half = MOST_ROWS // 2
        gap = f"<td class='l' colspan='{len(heads)}'>&hellip; {len(rows) - MOST_ROWS} more</td>"
        shown = [*shown[:half], f"<tr>{gap}</tr>", *shown[-half:]]
    return (
        f"<div class='miser'>{STYLE}<p>{escape(caption)}</p><table>"
        f"<thead>{_html_row('th', heads, left)}</thead>"
        f"<tbody>{''.join(shown)}</tbody></table></div>"
    )


def _html_row(tag: str, cells: Sequence[str], left: Collection[int]) -> str:
    inside = [
        f"<{tag}{' class=' + repr('l') if i in left else ''}>{escape(cell)}</{tag}>"
        for i, cell in enumerate(cells)
    ]
    return f"<tr>{''.join(inside)}</tr>"


class LineTable(Sequence[Item]):
    """Lines that print as a table, on a terminal and in a notebook."""

    # Heads of the columns, and those of them that are flush left.
    _heads: ClassVar[tuple[str, ...]]
    _left: ClassVar[frozenset[int]]

    def __init__(self, lines: Iterable[Item]):
        self._lines = tuple(lines)

    def _rows(self, lines: Sequence[Item]) -> list[tuple[str, ...]]:
        """What lines have in each column."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: SupportsIndex) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Item | Self:
        return type(self)(self._lines[index]) if isinstance(index, slice) else self._lines[index]

    def __len__(self) -> int:
        return len(self._lines)

    def __str__(self) -> str:
        return aligned([self._heads, *self._rows(self._lines)], self._left)

    def _repr_html_(self) -> str:
        rows = self._rows(self._lines)
        return html_table(repr(self).strip("<>"), self._heads, rows, self._left)
