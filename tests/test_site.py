"""The built site: complete, links lead somewhere, pictures say what they show, nothing is from elsewhere.

`make test` builds the site first. These tests read it from _build/html.
"""

import functools
import json
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

import find_claims
import repository

SITE = repository.ROOT / "_build" / "html"
CHAPTERS = repository.ROOT / "chapters"

# Elements that make a browser fetch something; a link that a reader may follow is none of them.
FETCHED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "image": "href",
    "use": "href",
}
FETCHED_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "modulepreload",
    "preconnect",
    "dns-prefetch",
}


def names() -> list[str]:
    """Return the names of the book's pages."""
    return sorted(
        path.stem for path in CHAPTERS.iterdir() if path.suffix in (".md", ".ipynb")
    )


@functools.cache
def parse(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


@functools.cache
def ids(path: Path) -> frozenset[str]:
    return frozenset(element["id"] for element in parse(path).find_all(id=True))


def all_pages() -> list[Path]:
    return sorted(SITE.rglob("*.html"))


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Fail with one sentence when the site is missing."""
    assert (SITE / "chapters" / "index.html").is_file(), (
        "there is no built site: run make book"
    )


@pytest.fixture(params=names())
def page(request) -> BeautifulSoup:
    """Return each page of the book in turn."""
    return parse(SITE / "chapters" / f"{request.param}.html")


def test_the_site_is_newer_than_its_sources():
    """Every test below would otherwise speak of another text."""
    newest = max(
        path.stat().st_mtime
        for path in CHAPTERS.iterdir()
        if path.suffix in (".md", ".ipynb")
    )
    built_at = (SITE / "chapters" / "index.html").stat().st_mtime
    assert built_at >= newest, (
        "the built site is older than the chapters: run make book"
    )


def test_each_page_was_built():
    missing = [
        name for name in names() if not (SITE / "chapters" / f"{name}.html").is_file()
    ]
    assert not missing
    assert (SITE / "search.html").is_file()
    assert (SITE / "searchindex.js").is_file()


def test_no_page_is_left_of_another_build():
    assert {path.stem for path in (SITE / "chapters").glob("*.html")} == set(names())


def test_internal_links_pictures_and_scripts_resolve():
    broken = []
    for path in all_pages():
        for element in parse(path).find_all(True):
            for attribute in ("href", "src"):
                address = element.get(attribute)
                if address is None or address == "#":
                    continue
                parts = urlsplit(address)
                if parts.scheme or parts.netloc:
                    continue
                target = (
                    (path.parent / unquote(parts.path)).resolve()
                    if parts.path
                    else path
                )
                if target.is_dir():
                    target /= "index.html"
                if not target.is_file():
                    broken.append(f"{path.relative_to(SITE)}: {address}")
                elif (
                    parts.fragment
                    and target.suffix == ".html"
                    and unquote(parts.fragment) not in ids(target)
                ):
                    broken.append(
                        f"{path.relative_to(SITE)}: {address} (no such anchor)"
                    )
    assert not broken, "\n".join(broken)


def test_ids_are_unique():
    for path in all_pages():
        found = [element["id"] for element in parse(path).find_all(id=True)]
        twice = sorted({name for name in found if found.count(name) > 1})
        # The theme writes the sidebar's buttons twice, for wide and for narrow screens.
        assert not [name for name in twice if not name.startswith(("pst-", "__"))], (
            path.name
        )


def test_nothing_comes_from_another_host():
    outside = []
    for path in all_pages():
        soup = parse(path)
        for element in soup.find_all(list(FETCHED)):
            outside.append(
                (
                    path.name,
                    element.get(FETCHED[element.name])
                    or element.get("xlink:href")
                    or "",
                )
            )
        for element in soup.find_all("link"):
            if FETCHED_LINKS & set(element.get("rel", [])):
                outside.append((path.name, element.get("href", "")))
        for element in soup.find_all(True):
            for attribute in ("src", "srcset", "poster", "data"):
                outside.append((path.name, str(element.get(attribute, ""))))
        for element in soup.find_all("script", src=False):
            outside += [
                (path.name, address)
                for address in re.findall(
                    r"(?:fetch|import|open|src\s*=)\s*\(?\s*['\"`]([^'\"`]*)",
                    element.text,
                )
            ]
        for element in soup.find_all(style=True):
            outside += [
                (path.name, address)
                for address in re.findall(r"url\(([^)]*)\)", element["style"])
            ]
    for path in (SITE / "_static").rglob("*.css"):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)
        outside += [
            (path.name, address)
            for address in re.findall(r"url\(\s*['\"]?([^)'\"]*)", text)
        ]
        outside += [
            (path.name, address)
            for address in re.findall(r"@import\s+['\"]([^'\"]*)", text)
        ]
    assert outside
    found = [pair for pair in outside if pair[1].startswith(("http:", "https:", "//"))]
    assert not found


def test_no_script_that_the_pages_do_not_need():
    for path in all_pages():
        sources = " ".join(
            element.get("src", "") for element in parse(path).find_all("script")
        )
        for name in ("fontawesome", "thebe", "require", "embed-amd", "html-manager"):
            assert name not in sources, f"{path.name} loads {name}"
        assert "sphinx-thebe" not in path.read_text(encoding="utf-8")


def test_formulas_are_set_by_our_own_mathjax():
    assert (SITE / "_static" / "mathjax" / "tex-chtml.js").is_file()
    assert list(
        (SITE / "_static" / "mathjax" / "output" / "chtml" / "fonts" / "woff-v2").glob(
            "*.woff"
        )
    )
    for name in names():
        soup = parse(SITE / "chapters" / f"{name}.html")
        if soup.find(class_="math"):
            assert soup.find("script", src=re.compile(r"mathjax/tex-chtml\.js")), name


def test_no_raw_tex_in_the_text(page):
    article = page.find("article")
    assert article is not None
    parts = []
    for text in article.find_all(string=True):
        hidden = any(
            parent.name in {"pre", "code", "script", "style", "svg", "kbd"}
            or "math" in (parent.get("class") or [])
            for parent in text.parents
        )
        if not hidden:
            parts.append(str(text))
    visible = "".join(parts)
    for mark in ("$", "\\begin{", "\\end{", "\\frac", "\\(", "\\["):
        where = visible.find(mark)
        assert where < 0, (
            f"{mark!r} in the text: …{visible[max(0, where - 60) : where + 60]}…"
        )


def test_pictures_say_what_they_show(page):
    for image in page.find_all("img"):
        says_it(image.get("alt"), image)
    pictures = [
        svg
        for svg in page.find("article").find_all("svg")
        if "mha-figure" in svg.get("class", [])
    ]
    for picture in pictures:
        assert picture.get("role") == "img"
        says_it(picture.get("aria-label"), picture)


def says_it(text: str | None, element) -> None:
    assert text and text.strip(), f"no alternative text: {str(element)[:200]}"
    assert not re.search(r"\.(svg|png|jpe?g|gif)\b|^\S*/\S*$", text.strip()), (
        f"a path is no description: {text!r}"
    )


def test_svg_pictures_stand_in_the_page(page):
    """Only there can they take the colours of the theme."""
    inside = [
        image["src"]
        for image in page.find("article").find_all("img")
        if image["src"].endswith(".svg")
    ]
    assert not inside
    for svg in page.find("article").find_all("svg", class_="mha-figure"):
        assert svg.get("viewbox") or svg.get("viewBox")
        assert "height" not in svg.attrs


def test_there_are_pictures_in_the_palette_colours():
    text = "".join(
        (SITE / "chapters" / f"{name}.html").read_text(encoding="utf-8")
        for name in names()
    )
    assert "var(--mha-ink)" in text
    css = (SITE / "_static" / "palette.css").read_text(encoding="utf-8")
    for variable in set(re.findall(r"var\((--mha-[\w-]+)\)", text)):
        assert css.count(f"{variable}:") == 2, (
            f"{variable} has no value for both themes"
        )


def test_each_colab_link_names_a_notebook_on_the_configured_branch():
    found = set()
    for path in all_pages():
        for link in parse(path).find_all("a", href=re.compile("colab")):
            match = re.fullmatch(
                r"https://colab\.research\.google\.com/github/([^/]+/[^/]+)/blob/([^/]+)/(.+\.ipynb)",
                link["href"],
            )
            assert match, f"{path.name}: {link['href']}"
            assert match[1] == repository.configured()
            assert match[2] == repository.branch()
            assert (repository.ROOT / match[3]).is_file(), f"{path.name}: no {match[3]}"
            found.add(match[3])
    assert found == {f"chapters/{path.name}" for path in CHAPTERS.glob("*.ipynb")}


def test_the_landing_page_links_every_notebook_on_colab():
    soup = parse(SITE / "chapters" / "index.html")
    links = {link["href"] for link in soup.find("article").find_all("a", href=True)}
    for path in CHAPTERS.glob("*.ipynb"):
        assert repository.colab_link(f"chapters/{path.stem}") in links, path.name


def test_each_page_has_its_descriptions(page):
    for selector in ({"name": "description"}, {"property": "og:description"}):
        contents = [
            element.get("content", "")
            for element in page.find_all("meta", attrs=selector)
        ]
        assert len(contents) == 1, f"{selector}: {contents}"
        assert contents[0].strip()
    assert page.title.get_text().strip()
    assert page.html["lang"] == "en"


def all_claims() -> list[tuple[str, find_claims.Claim]]:
    found = []
    for path in sorted(CHAPTERS.glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                found += [
                    (path.stem, claim)
                    for claim in find_claims.find_claims("".join(cell["source"]))
                ]
    return found


def test_the_list_of_claims_is_complete_and_leads_to_the_cells():
    links = parse(SITE / "chapters" / "claims.html").select("ul.mha-claims a")
    listed = [(unquote(link["href"]), link.get_text()) for link in links]
    expected = [
        (f"{page}.html#{claim.anchor}", claim.sentence) for page, claim in all_claims()
    ]
    assert expected
    assert listed == expected


def test_claims_have_anchors_and_look_like_sentences():
    for name, claim in all_claims():
        path = SITE / "chapters" / f"{name}.html"
        assert claim.anchor in ids(path)
        # Spaces may be broken differently; a sentence is shown outside of code.
        shown = [
            " ".join(element.get_text().split())
            for element in parse(path).select("p.mha-claim")
        ]
        assert any(
            text.startswith(f"✓ {' '.join(claim.sentence.split())}") for text in shown
        ), claim.sentence
    for path in all_pages():
        for block in parse(path).select(".cell_output pre"):
            assert not re.search(r"^✓ ", block.get_text(), re.M), (
                "a claim is still shown as code"
            )


def test_the_pages_hold_no_dead_controls(page):
    assert not page.find("script", type=re.compile("jupyter.widget"))
    assert "jupyter-widgets" not in str(page.find("article"))
