"""Turn an SVG file into markup that stands in an HTML page and follows the page's light or dark theme."""

import re
import xml.etree.ElementTree as ElementTree

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", SVG)

# CSS pixels in one unit of length.
PIXELS = {
    "": 1,
    "px": 1,
    "pt": 96 / 72,
    "pc": 16,
    "in": 96,
    "cm": 96 / 2.54,
    "mm": 96 / 25.4,
}

# What draws nothing. A title would also come up as a tooltip over the whole picture; the label replaces it.
SILENT = {f"{{{SVG}}}metadata", f"{{{SVG}}}title", f"{{{SVG}}}desc"}

# The two ways in which an attribute or a style sheet refers to an id; links (`href`) are the third.
REFERENCE = re.compile(r"url\(\s*['\"]?#([^)'\"\s]+)['\"]?\s*\)")


def inline(
    source: str,
    label: str,
    prefix: str,
    variables: dict[str, str],
    width: str | None = None,
) -> str:
    """Return an SVG file as an ``<svg>`` element for an HTML page.

    Parameters
    ----------
    source : str
        The text of the file.
    label : str
        What the picture shows, for readers who do not see it.
    prefix : str
        Put before each id, so that no two pictures of a page share one.
    variables : dict of str to str
        For each colour as drawn (``#rrggbb``, lower case) the CSS variable that replaces it.
    width : str, optional
        The width on the page, as CSS; by default the picture's own.
    """
    root = ElementTree.fromstring(source)
    if root.tag != f"{{{SVG}}}svg":
        raise ValueError(f"expected an <svg> element, got <{root.tag}>")
    _remove_silent(root)

    natural = _natural_width(root)
    for name in ("width", "height", "version", "id"):
        root.attrib.pop(name, None)
    own = f"{natural:g}px"
    style = [
        f"--natural-width:{own}",
        f"max-width:{width or own}",
        "width:100%",
        "height:auto",
    ]
    # Lengths of one's own come last: a style of the file must not stretch the picture.
    root.set("style", ";".join([root.get("style", "").strip("; "), *style]).strip("; "))
    root.set("role", "img")
    root.set("aria-label", label)
    root.set("class", " ".join([*root.get("class", "").split(), "mha-figure"]))

    used = _used_ids(root)
    scope = f"{prefix}picture"
    colours = re.compile(
        "|".join(map(re.escape, sorted(_spellings(variables), key=len, reverse=True))),
        re.I,
    )
    replacement = _spellings(variables)

    def recolour(text: str) -> str:
        # A longer number, such as #ffffff80, is another colour.
        return re.sub(
            rf"({colours.pattern})(?![0-9a-f])",
            lambda match: f"var({replacement[match[1].lower()]})",
            text,
            flags=re.I,
        )

    def rename(text: str) -> str:
        return REFERENCE.sub(lambda match: f"url(#{prefix}{match[1]})", text)

    for element in root.iter():
        for name, value in list(element.attrib.items()):
            if name == "id":
                del element.attrib[name]
                if value in used:
                    element.set("id", prefix + value)
            elif name in ("href", f"{{{XLINK}}}href"):
                # The old spelling with a namespace; every browser knows the short one.
                del element.attrib[name]
                element.set(
                    "href", f"#{prefix}{value[1:]}" if value.startswith("#") else value
                )
            elif name.startswith(f"{{{XLINK}}}"):
                del element.attrib[name]
            elif name != "aria-label":
                element.set(name, rename(recolour(value) if variables else value))
        if element.tag == f"{{{SVG}}}style" and element.text:
            # In a page, the rules of a picture would hold for the whole page.
            root.set("id", scope)
            element.text = _scoped(
                rename(recolour(element.text) if variables else element.text), scope
            )
    return ElementTree.tostring(root, encoding="unicode").strip()


def _remove_silent(element: ElementTree.Element) -> None:
    for child in list(element):
        if child.tag in SILENT:
            # The text behind a removed element stays.
            element.remove(child)
        else:
            _remove_silent(child)


def _natural_width(root: ElementTree.Element) -> float:
    """Return the width in pixels; make sure of a viewBox, without which a picture does not scale."""
    lengths = [
        re.fullmatch(r"([0-9.]+)([a-z]*)", root.get(name, "").strip())
        for name in ("width", "height")
    ]
    pixels = [
        float(match[1]) * PIXELS[match[2]] if match and match[2] in PIXELS else None
        for match in lengths
    ]
    box = root.get("viewBox", "").replace(",", " ").split()
    if len(box) != 4:
        if None in pixels:
            raise ValueError("an SVG needs a viewBox, or a width and a height")
        root.set("viewBox", f"0 0 {pixels[0]:g} {pixels[1]:g}")
    return pixels[0] if pixels[0] is not None else float(box[2])


def _used_ids(root: ElementTree.Element) -> set[str]:
    used = set()
    for element in root.iter():
        for name, value in element.attrib.items():
            if name in ("href", f"{{{XLINK}}}href") and value.startswith("#"):
                used.add(value[1:])
            used.update(REFERENCE.findall(value))
        if element.tag == f"{{{SVG}}}style" and element.text:
            used.update(REFERENCE.findall(element.text))
    return used


def _spellings(variables: dict[str, str]) -> dict[str, str]:
    """Add the short spelling of a colour: #fff for #ffffff."""
    spellings = dict(variables)
    for colour, variable in variables.items():
        if re.fullmatch(r"#(?:([0-9a-f])\1)([0-9a-f])\2([0-9a-f])\3", colour):
            spellings[f"#{colour[1]}{colour[3]}{colour[5]}"] = variable
    return spellings


def _scoped(css: str, scope: str) -> str:
    """Let each rule of a style sheet hold only inside the element with the id `scope`."""
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.S)
    if "@" in css:
        raise ValueError("an SVG's style sheet may hold plain rules only, no @-rules")
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", css)
    return "".join(
        f"{','.join(f'#{scope} {selector.strip()}' for selector in selectors.split(','))}{{{body.strip()}}}"
        for selectors, body in rules
    )
