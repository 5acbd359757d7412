"""What the book adds to Sphinx: claims, pictures that follow the theme, and nothing from another host.

* MathJax comes from an installed package, and no script is loaded that the pages do not need.
* SVG pictures stand in the pages themselves, in the colours of the light or the dark theme.
* Each claim can be linked to, looks like a sentence, and is listed by the ``claims`` directive.
* The role ``colab`` links to a notebook on Colab.
"""

import importlib.metadata
import runpy
import shutil
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import find_claims
import inline_svg
import repository

LOGGER = logging.getLogger(__name__)

TOOLS = Path(__file__).resolve().parent
PALETTE = repository.ROOT / "code" / "mha" / "palette.py"

# Of the 24 MB of MathJax, what a page with TeX formulas may ask for.
MATHJAX = ("tex-chtml.js", "output/chtml/fonts/woff-v2", "input/tex/extensions")

TICK = "✓ "

# The sentences and anchors of each page's claims, collected while pages are read.
CLAIMS: dict[str, list[tuple[str, str]]] = {}


class ClaimsList(nodes.General, nodes.Element):
    """Stands for the list of all claims until every page has been read."""


class ClaimsDirective(SphinxDirective):
    """``{claims}``: every claim of the book, by chapter, each with a link to the cell that proves it."""

    def run(self) -> list[nodes.Node]:
        """Return the placeholder."""
        return [ClaimsList()]


class InlineSvg(SphinxPostTransform):
    """Put SVG pictures into the page. Only so can they take its colours."""

    # After the outputs of cells have been chosen (4), before anything copies image files.
    default_priority = 900
    formats = ("html",)

    def run(self, **kwargs) -> None:
        """Replace each SVG image of the page."""
        variables = {
            light: variable for variable, light, _ in theme_variables().values()
        }
        for number, image in enumerate(
            list(self.document.findall(nodes.image)), start=1
        ):
            if not image.get("alt", "").strip():
                LOGGER.warning(
                    "a picture has no text that says what it shows (alt)",
                    location=image,
                )
                continue
            path = Path(self.env.srcdir, image["uri"])
            if path.suffix != ".svg" or not path.is_file():
                continue
            try:
                markup = inline_svg.inline(
                    path.read_text(encoding="utf-8"),
                    image["alt"].strip(),
                    f"figure-{number}-",
                    variables,
                    _css_length(image.get("width")),
                )
            except (ValueError, SyntaxError) as error:
                LOGGER.warning(
                    "the picture %s cannot stand in the page: %s",
                    path.name,
                    error,
                    location=image,
                )
                continue
            picture = nodes.raw("", markup, format="html")
            if isinstance(image.parent, nodes.TextElement):
                image.replace_self(picture)
            else:
                image.replace_self(
                    nodes.container("", picture, classes=["mha-picture"])
                )


def theme_variables() -> dict[str, tuple[str, str, str]]:
    """Return the palette: for each colour its CSS variable, its light and its dark value.

    The file is run alone: importing the package would import torch, and building the site does without it.
    """
    return runpy.run_path(str(PALETTE))["THEME_VARIABLES"]


def theme_css() -> str:
    """Return the style sheet that defines the palette's variables for both themes."""
    colours = theme_variables().values()
    light = "".join(f"  {variable}: {value};\n" for variable, value, _ in colours)
    dark = "".join(f"  {variable}: {value};\n" for variable, _, value in colours)
    return f':root {{\n{light}}}\n\nhtml[data-theme="dark"] {{\n{dark}}}\n'


def configure(app: Sphinx, config) -> None:
    """Set the options that follow from files."""
    # Captions say "Figure 1" themselves; Sphinx would count anew in each chapter.
    config.numfig = False
    config.mathjax_path = "mathjax/tex-chtml.js"
    config.templates_path.append(str(TOOLS / "templates"))
    # "%.0s" takes the name of the notebook and writes nothing: the link's text is the same everywhere.
    config.extlinks["colab"] = (
        repository.colab_link("chapters/%s"),
        "Open in Colab%.0s",
    )


def write_static_files(app: Sphinx) -> None:
    """Write the palette's style sheet and MathJax beside the theme's files."""
    if app.builder.format != "html":
        return
    static = Path(app.outdir, "_static")
    static.mkdir(parents=True, exist_ok=True)
    (static / "palette.css").write_text(theme_css(), encoding="utf-8")
    # The package's name has hyphens, so it cannot be imported; its list of files says where it is.
    installed = importlib.metadata.distribution("sphinx-mathjax-offline")
    source = Path(installed.locate_file("sphinx-mathjax-offline/static/mathjax"))
    for name in MATHJAX:
        target = static / "mathjax" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source / name, target)


def remove_unused_files(app: Sphinx, exception: Exception | None) -> None:
    """Leave out what no page loads: the second set of icons, maps for debugging, the theme's templates."""
    static = Path(app.outdir, "_static")
    if exception is None and app.builder.format == "html":
        scripts = static / "scripts"
        unused = {
            *scripts.glob("fontawesome.js*"),
            *scripts.glob("*.map"),
            *static.glob("*-macros.html"),
        }
        for path in unused:
            path.unlink()


def mark_claims(app: Sphinx, doctree: nodes.document) -> None:
    """Give each cell that proves a claim an anchor, and show the proved sentence as a sentence."""
    found = []
    for cell in doctree.findall(lambda node: _is_cell(node, "cell_code")):
        source = "\n".join(
            part.astext()
            for part in cell.children
            if _is_cell(part, "cell_code_source")
        )
        anchors = {
            claim.sentence: claim.anchor
            for claim in find_claims.find_claims(source)
            if claim.sentence
        }
        # No code runs here, so a claim counts only if the stored output says that it held.
        printed = cell.astext()
        for sentence in anchors:
            if TICK + sentence not in printed:
                LOGGER.warning(
                    "the claim has no ✓ in the stored output: %s",
                    sentence,
                    location=cell,
                )
        cell["ids"].extend(anchors.values())
        found.extend(anchors.items())
        for output in list(
            cell.findall(lambda node: isinstance(node, nodes.literal_block))
        ):
            if "stream" in output["classes"]:
                # Not replace_self: that hands the classes of the block on to its first sentence.
                output.parent.replace(output, _split_output(output, anchors))
    CLAIMS[app.env.docname] = found


def list_claims(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replace the placeholder by the list."""
    for placeholder in list(doctree.findall(ClaimsList)):
        parts = []
        for page in _pages(app):
            if not CLAIMS.get(page):
                continue
            uri = app.builder.get_relative_uri(docname, page)
            rows = nodes.bullet_list(classes=["mha-claims"])
            for sentence, anchor in CLAIMS[page]:
                link = nodes.reference(
                    "", sentence, refuri=f"{uri}#{anchor}", internal=True
                )
                rows.append(nodes.list_item("", nodes.paragraph("", "", link)))
            title = app.env.titles[page].astext()
            heading = nodes.reference("", title, refuri=uri, internal=True)
            parts.append(nodes.rubric("", "", heading, classes=["mha-claims-of"]))
            parts.append(rows)
        placeholder.replace_self(
            parts or nodes.paragraph("", "No chapter makes a claim yet.")
        )


def setup(app: Sphinx) -> dict:
    """Register everything above. `make book` always builds anew and in one process, so nothing is kept or merged."""
    app.add_node(ClaimsList)
    app.add_directive("claims", ClaimsDirective)
    app.add_post_transform(InlineSvg)
    # Before the book's own style sheet, which uses the variables.
    app.add_css_file("palette.css", priority=400)
    # Late, because another extension of jupyter-book sets numfig at the same event.
    app.connect("config-inited", configure, priority=900)
    app.connect("builder-inited", write_static_files)
    app.connect("doctree-read", mark_claims)
    app.connect("doctree-resolved", list_claims)
    app.connect("build-finished", remove_unused_files)
    return {"parallel_read_safe": False, "parallel_write_safe": True}


def _is_cell(node: nodes.Node, kind: str) -> bool:
    return isinstance(node, nodes.container) and node.get("nb_element") == kind


def _split_output(
    output: nodes.literal_block, anchors: dict[str, str]
) -> list[nodes.Node]:
    """Return a printed text with each proved claim as a sentence of its own."""
    parts: list[nodes.Node] = []
    rest: list[str] = []

    def flush() -> None:
        if "".join(rest).strip():
            block = output.copy()
            block.rawsource = "\n".join(rest)
            block.append(nodes.Text(block.rawsource))
            parts.append(block)
        rest.clear()

    for line in output.astext().rstrip("\n").split("\n"):
        sentence = line.removeprefix(TICK).strip()
        if not line.startswith(TICK) or sentence not in anchors:
            rest.append(line)
            continue
        flush()
        paragraph = nodes.paragraph("", "", classes=["mha-claim"])
        paragraph += nodes.inline("", TICK.strip(), classes=["mha-tick"])
        paragraph += nodes.Text(" " + sentence)
        # A link to itself, to copy from.
        paragraph += nodes.Text(" ")
        paragraph += nodes.reference(
            "", "#", refid=anchors[sentence], classes=["mha-claim-link"]
        )
        parts.append(paragraph)
    flush()
    return parts


def _pages(app: Sphinx) -> list[str]:
    """Return the pages in the order of the table of contents."""
    order, queue = [], [app.config.root_doc]
    while queue:
        page = queue.pop(0)
        if page not in order:
            order.append(page)
            queue = list(app.env.toctree_includes.get(page, [])) + queue
    return order


def _css_length(width: str | None) -> str | None:
    """Return a width of Markdown as CSS: a bare number means pixels."""
    return f"{width}px" if width and width.strip().isdigit() else width
