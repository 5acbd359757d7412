"""The book's colours, and nothing else: this file imports nothing, so that the site's builder can read it alone.

Each entry is ``name: (CSS variable, colour on light paper, colour on dark paper)``.
Pictures are drawn with the light colour; the built site replaces it by the CSS variable, so that a picture
follows the reader's theme.
The head colours start from Okabe and Ito's colour-blind-safe set, darkened (or lightened, for dark paper) until
each has a contrast of 4.5 : 1 against its paper; ``tests/test_palette.py`` measures that and the distances that
remain between them under three kinds of colour blindness.
"""

THEME_VARIABLES = {
    "paper": ("--mha-paper", "#ffffff", "#121212"),
    "panel": ("--mha-panel", "#f1f4f7", "#232b35"),
    "line": ("--mha-line", "#c5ccd4", "#4c5866"),
    "muted": ("--mha-muted", "#5b6673", "#a7b1bc"),
    "ink": ("--mha-ink", "#1f2933", "#e6e9ee"),
    "on_color": ("--mha-on-color", "#fefefe", "#0d1117"),
    "bad": ("--mha-bad", "#b3142d", "#ff8a94"),
    "blue": ("--mha-blue", "#0068a9", "#5cb3f5"),
    "vermilion": ("--mha-vermilion", "#c24a00", "#ff9257"),
    "green": ("--mha-green", "#007a5e", "#42c9a2"),
    "pink": ("--mha-pink", "#a6428a", "#ec93d0"),
    "ochre": ("--mha-ochre", "#866000", "#e0b748"),
    "violet": ("--mha-violet", "#5b43c4", "#b0a0ff"),
    "teal": ("--mha-teal", "#007c8c", "#4cc5d6"),
    "brown": ("--mha-brown", "#7a4023", "#d6a283"),
}

COLORS = {name: light for name, (_, light, _) in THEME_VARIABLES.items()}

HEAD_COLORS = tuple(
    COLORS[name]
    for name in (
        "blue",
        "vermilion",
        "green",
        "pink",
        "ochre",
        "violet",
        "teal",
        "brown",
    )
)


def head_color(head: int) -> str:
    """Return the colour of a head, the same one in every picture of the book (after eight they repeat)."""
    return HEAD_COLORS[head % len(HEAD_COLORS)]
