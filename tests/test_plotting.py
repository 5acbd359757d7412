"""Pictures of weights: each label at its cell, queries down, keys across, labels as they are."""

import io
import re
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex, to_rgba
from matplotlib.path import Path

import mha
from mha import palette, plotting
from mha.style import to_svg


@pytest.fixture(autouse=True)
def figures_closed():
    with warnings.catch_warnings():
        warnings.simplefilter(
            "error"
        )  # a warning would stand on the page, and fail the notebook's test
        yield
    plt.close("all")


def random_weights(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).softmax(
        dim=-1
    )


def panels(figure):
    return [
        axes
        for axes in figure.axes
        if axes.get_visible() and axes.get_label() != "<colorbar>"
    ]


def cell_colors(axes):
    """Return the colours of the cells as drawn, ``(query, key, 4)``, whichever way they are drawn."""
    axes.figure.canvas.draw()
    if axes.images:
        return np.asarray(axes.images[0].get_array())
    key_len, query_len = (
        round(abs(np.diff(limits)[0])) for limits in (axes.get_xlim(), axes.get_ylim())
    )
    colors = np.zeros((query_len, key_len, 4))
    for patch in axes.patches:
        for row, column in np.ndindex(query_len, key_len):
            if patch.get_fill() and patch.get_path().contains_point((column, row)):
                colors[row, column] = patch.get_facecolor()
    return colors


def tick_labels(axis):
    """Return position and text of every label."""
    axis.get_figure().canvas.draw()
    return [
        (float(tick), text.get_text())
        for tick, text in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    ]


# --- cells ---


def test_queries_are_rows_and_keys_are_columns():
    # poloclub/transformer-explainer#19: are the axes swapped?
    weights = torch.tensor([[0.0, 1.0, 0.0], [0.25, 0.5, 0.25]])  # 2 queries, 3 keys
    (axes,) = panels(mha.plot_attention(weights))
    assert axes.get_xlabel() == "key" and axes.get_ylabel() == "query"
    colors = cell_colors(axes)
    assert colors.shape == (2, 3, 4)
    assert np.allclose(colors[..., 3], weights)  # the opacity is the weight
    assert np.allclose(colors[weights > 0, :3], to_rgba(palette.COLORS["blue"])[:3])
    # Row 0 on top, column 0 on the left, each cell a unit square around its numbers.
    assert axes.get_ylim() == (1.5, -0.5) and axes.get_xlim() == (-0.5, 2.5)
    lines = axes.patches[-1].get_path().get_extents()
    assert lines.p0.tolist() == [-0.5, -0.5] and lines.p1.tolist() == [2.5, 1.5]


@pytest.mark.parametrize("size", [(5, 7), (100, 50)], ids=["cells", "image"])
def test_each_cell_shows_its_own_weight(size):
    weights = torch.rand(2, *size, generator=torch.Generator().manual_seed(0))
    for axes, matrix in zip(panels(mha.plot_attention(weights)), weights, strict=True):
        assert np.allclose(cell_colors(axes)[..., 3], matrix, atol=6e-4)
        if axes.images:
            assert axes.images[0].get_extent() == [
                -0.5,
                size[1] - 0.5,
                size[0] - 0.5,
                -0.5,
            ]


def test_all_heads_share_one_scale_from_zero_to_one():
    weights = torch.stack(
        [torch.full((2, 2), 0.01), torch.full((2, 2), 0.5), torch.full((2, 2), 1.0)]
    )
    opacity = [
        cell_colors(axes)[0, 0, 3] for axes in panels(mha.plot_attention(weights))
    ]
    assert np.allclose(opacity, [0.01, 0.5, 1.0])


def test_the_scale_beside_a_large_matrix_runs_from_zero_to_one():
    figure = mha.plot_attention(random_weights(2, 9, 9))
    (bar,) = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert bar.get_ylim() == (0.0, 1.0) and bar.get_ylabel() == "attention weight"
    small = mha.plot_attention(random_weights(2, 3, 3))
    assert not [axes for axes in small.axes if axes.get_label() == "<colorbar>"]


def test_small_matrices_show_their_numbers():
    weights = torch.tensor([[1.0, 0.0], [0.25, 0.754]])
    (axes,) = panels(mha.plot_attention(weights))
    texts = {
        text.get_position(): text.get_text() for text in axes.texts
    }  # (column, row)
    assert texts == {(0, 0): "1", (1, 0): "0", (0, 1): ".25", (1, 1): ".75"}
    assert not panels(mha.plot_attention(random_weights(7, 7)))[0].texts


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [2, 9, 70])
def test_a_cell_that_is_no_number_cannot_be_overlooked(bad, size):
    weights = np.full((size, size), 1 / size)
    weights[0, 1] = bad
    (axes,) = panels(mha.plot_attention(weights))
    colors = cell_colors(axes)
    assert to_hex(colors[0, 1]) == palette.COLORS["bad"] and colors[0, 1, 3] == 1
    assert to_hex(colors[1, 0]) == palette.COLORS["blue"]
    if size == 2:
        (text,) = [text for text in axes.texts if text.get_position() == (1, 0)]
        assert (
            text.get_text() == str(bad)
            and text.get_color() == palette.COLORS["on_color"]
        )


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.bfloat16, torch.float16, torch.bool, torch.int64],
    ids=str,
)
def test_any_kind_of_number(dtype):
    (axes,) = panels(mha.plot_attention(torch.eye(3).to(dtype)))
    assert np.allclose(cell_colors(axes)[..., 3], np.eye(3))


def test_tensors_with_gradients_arrays_and_the_callers_data():
    weights = random_weights(2, 3, 4).requires_grad_()
    copy = weights.detach().clone()
    from_tensor = to_svg(mha.plot_attention(weights))
    array = copy.numpy().copy()
    assert to_svg(mha.plot_attention(array)) == from_tensor
    assert torch.equal(weights, copy) and np.array_equal(array, copy.numpy())


# --- labels ---


def test_each_label_stands_at_its_cell():
    # bojieli/ai-agent-book#346, jessevig/bertviz#80: labels without positions are one cell off
    rows, columns = ["it", "was", "tired"], ["the", "kitten", "did", "not"]
    (axes,) = panels(mha.plot_attention(random_weights(3, 4), rows, columns))
    assert tick_labels(axes.yaxis) == list(enumerate(rows))
    assert tick_labels(axes.xaxis) == list(enumerate(columns))


def test_one_list_of_tokens_labels_both_axes_of_self_attention():
    tokens = ["it", "was", "tired"]
    (axes,) = panels(mha.plot_attention(random_weights(3, 3), tokens))
    assert tick_labels(axes.xaxis) == tick_labels(axes.yaxis) == list(enumerate(tokens))


def test_cross_attention_does_not_take_the_queries_labels_for_the_keys():
    (axes,) = panels(mha.plot_attention(random_weights(2, 3), ["a", "b"]))
    assert [text for _, text in tick_labels(axes.yaxis)] == ["a", "b"]
    assert [text for _, text in tick_labels(axes.xaxis)] == ["0", "1", "2"]
    (axes,) = panels(
        mha.plot_attention(random_weights(3, 3), ["a", "b", "c"], ["x", "y", "z"])
    )
    assert [text for _, text in tick_labels(axes.yaxis)] == ["a", "b", "c"]
    assert [text for _, text in tick_labels(axes.xaxis)] == ["x", "y", "z"]
    (axes,) = panels(
        mha.plot_attention(random_weights(3, 3), key_tokens=["x", "y", "z"])
    )
    assert [text for _, text in tick_labels(axes.yaxis)] == ["0", "1", "2"]


LITERAL = [
    "$x$",
    "$",
    "$$",
    "<b>",
    "&amp;",
    " ",
    "",
    "a_b^c",
    "\\alpha",
    "{x}",
    "%d",
    "#1",
    "▁the",
    "Ġthe",
    "'\"",
]


@pytest.mark.parametrize("token", LITERAL, ids=repr)
def test_tokens_are_drawn_as_they_are(token):
    tokens = [token, token, "z"]
    figure = mha.plot_attention(random_weights(2, 3, 3), tokens)
    figure.savefig(io.BytesIO())
    for axes in panels(figure):
        for axis in (axes.xaxis, axes.yaxis):
            assert tick_labels(axis) == list(enumerate(tokens))
            assert not any(
                text.get_parse_math() or text.get_usetex()
                for text in axis.get_ticklabels()
            )


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("\n", "\\n"),
        ("a\nb", "a\\nb"),
        ("\t", "\\t"),
        ("\r\n", "\\r\\n"),
        ("\x00", "\\x00"),
        ("\ud800", "\\ud800"),
        ("\u2028", "\\u2028"),
    ],
)
def test_characters_without_a_shape_are_drawn_as_escapes(token, shown):
    figure = mha.plot_attention(random_weights(2, 2), [token, "z"])
    to_svg(figure)
    (axes,) = panels(figure)
    assert tick_labels(axes.xaxis)[0] == (0.0, shown)


def test_a_dollar_is_drawn_with_as_many_shapes_as_a_letter():
    # What counts is the picture: mathematics would swallow the signs.
    def glyphs(token):
        svg = to_svg(mha.plot_attention(torch.eye(1), [token], ["z"]))
        return len(re.findall("<use ", svg))

    assert glyphs("$x$") == glyphs("axa") == glyphs("z") + 2


def test_chinese_tokens_keep_their_text_and_their_places():
    # matplotlib/matplotlib#14269: boxes, and a warning for every letter
    tokens = ["小猫", "没有", "过马路"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure = mha.plot_attention(random_weights(3, 3), tokens)
        to_svg(figure)
    assert not [warning for warning in caught if "Glyph" in str(warning.message)]
    (axes,) = panels(figure)
    assert tick_labels(axes.xaxis) == list(enumerate(tokens))


def test_a_long_text_has_fewer_labels_at_the_right_places():
    tokens = [f"t{i}" for i in range(100)]
    (axes,) = panels(mha.plot_attention(random_weights(100, 100), tokens))
    labels = tick_labels(axes.xaxis)
    assert 20 < len(labels) <= 60
    assert all(text == f"t{int(position)}" for position, text in labels)


def test_labels_that_are_no_strings():
    (axes,) = panels(mha.plot_attention(random_weights(2, 2), [5, None]))
    assert [text for _, text in tick_labels(axes.yaxis)] == ["5", "None"]


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        (["a"], None, r"query_tokens: expected 2 labels, one a position, got 1"),
        (
            ["a", "b", "c"],
            None,
            r"query_tokens: expected 2 labels, one a position, got 3",
        ),
        (None, ["a", "b"], r"key_tokens: expected 3 labels, one a position, got 2"),
        ([], [], r"query_tokens: expected 2 labels, one a position, got 0"),
    ],
)
def test_labels_of_another_length_name_both_lengths(rows, columns, message):
    with pytest.raises(ValueError, match=message):
        mha.plot_attention(random_weights(2, 3), rows, columns)


# --- panels ---


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 5, 8, 12])
def test_every_head_has_its_panel_and_spare_panels_are_hidden(num_heads):
    # matplotlib/matplotlib#8571, bytedance/ibot#16: one head, odd numbers, more heads than colours
    weights = random_weights(num_heads, 2, 3)
    figure = mha.plot_attention(weights)
    shown = panels(figure)
    assert [axes.get_title(loc="left") for axes in shown] == [
        f"head {head}" for head in range(num_heads)
    ]
    for head, axes in enumerate(shown):
        assert np.allclose(cell_colors(axes)[..., 3], weights[head], atol=6e-4)
        assert (
            axes.title.get_text() == ""
            and axes._left_title.get_color() == palette.head_color(head)
        )
    assert all(not axes.get_visible() for axes in figure.axes if axes not in shown)
    boxes = [axes.get_position().bounds for axes in shown]
    assert len({box[:2] for box in boxes}) == num_heads  # none on top of another


def test_chosen_heads_keep_their_numbers_and_colours():
    weights = random_weights(6, 2, 3)
    shown = panels(mha.plot_attention(weights, heads=[5, 0, 3]))
    assert [axes.get_title(loc="left") for axes in shown] == [
        "head 5",
        "head 0",
        "head 3",
    ]
    for head, axes in zip([5, 0, 3], shown, strict=True):
        assert np.allclose(cell_colors(axes)[..., 3], weights[head], atol=6e-4)
        assert axes._left_title.get_color() == palette.head_color(head)


def test_a_matrix_without_heads_has_no_head_number():
    (axes,) = panels(mha.plot_attention(random_weights(2, 3)))
    assert axes.get_title(loc="left") == ""
    (axes,) = panels(mha.plot_attention(random_weights(1, 2, 3)))
    assert axes.get_title(loc="left") == "head 0"


def test_a_batch_of_one_is_taken_and_a_larger_one_asks_for_a_choice():
    # jessevig/bertviz#101: the real cause was a batch of 16
    weights = random_weights(1, 3, 2, 4)
    assert to_svg(mha.plot_attention(weights)) == to_svg(mha.plot_attention(weights[0]))
    with pytest.raises(
        ValueError,
        match=r"weights: expected one sentence, got a batch of 2 .*weights\[0\]",
    ):
        mha.plot_attention(random_weights(2, 3, 2, 4))


@pytest.mark.parametrize("shape", [(), (3,), (1, 1, 1, 2, 2)], ids=str)
def test_another_number_of_axes(shape):
    with pytest.raises(
        ValueError, match=r"weights: expected shape \(query, key\)"
    ) as error:
        mha.plot_attention(torch.zeros(shape))
    assert str(tuple(shape)) in str(error.value)


@pytest.mark.parametrize(
    "shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0), (0, 0), (1, 0, 2, 2)], ids=str
)
def test_nothing_to_draw_is_said_clearly(shape):
    with pytest.raises(
        ValueError, match="weights: expected at least one head, query and key"
    ):
        mha.plot_attention(torch.zeros(shape))
    assert not plt.get_fignums()


@pytest.mark.parametrize("heads", [[2], [0, 7]])
def test_heads_that_do_not_exist(heads):
    with pytest.raises(
        ValueError, match=rf"heads: expected numbers from 0 to 1, got {heads[-1]}"
    ):
        mha.plot_attention(random_weights(2, 2, 2), heads=heads)


@pytest.mark.parametrize("heads", [[-1], "01", [0.0], [True]])
def test_heads_that_are_no_positions(heads):
    with pytest.raises((TypeError, ValueError), match="heads: expected"):
        mha.plot_attention(random_weights(2, 2, 2), heads=heads)


@pytest.mark.parametrize("weights", [[[1.0, -0.5]], [[3.0, 0.0]]])
def test_scores_are_no_weights(weights):
    with pytest.raises(ValueError, match="weights: expected numbers from 0 to 1"):
        mha.plot_attention(torch.tensor(weights))


def test_a_set_has_no_order():
    with pytest.raises(TypeError, match="query_tokens: expected a sequence"):
        mha.plot_attention(random_weights(1, 2, 2), {"a", "b"})


@pytest.mark.parametrize(
    "shape", [(12, 13, 13), (12, 32, 32), (64, 64, 64), (1, 200, 3)]
)
def test_figures_stay_within_a_page(shape):
    figure = mha.plot_attention(random_weights(*shape))
    width, height = figure.get_size_inches()
    assert width < 13 and height < 15


def test_a_long_label_is_cut():
    figure = mha.plot_attention(random_weights(1, 2, 2), ["x" * 1500, "b"])
    first, second = figure.axes[0].get_yticklabels()
    assert first.get_text() == "x" * 39 + "…"
    assert second.get_text() == "b"
    assert max(figure.get_size_inches()) < 15


def test_no_heads_chosen():
    with pytest.raises(ValueError, match="heads: expected at least one"):
        mha.plot_attention(random_weights(2, 2, 2), heads=[])


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 40), (40, 1), (2, 1500), (1500, 2), (300, 300)], ids=str
)
def test_no_size_makes_a_picture_that_cannot_be_drawn(shape):
    figure = mha.plot_attention(random_weights(*shape))
    width, height = figure.get_size_inches()
    assert 1 < width < 20 and 1 < height < 20
    figure.savefig(io.BytesIO(), dpi=30)
    (axes,) = panels(figure)
    _, _, panel_width, panel_height = axes.get_position().bounds
    assert panel_width * width > 0.2 and panel_height * height > 0.2


# --- the readers' own settings ---


def test_the_global_settings_are_left_alone():
    with plt.rc_context(
        {"font.size": 17, "axes.facecolor": "yellow", "image.origin": "lower"}
    ):
        before = dict(plt.rcParams)
        figure = mha.plot_attention(random_weights(2, 3, 4), ["a", "b", "c"], heads=[1])
        assert dict(plt.rcParams) == before
        assert (
            to_hex(figure.axes[0].yaxis.get_ticklabels()[0].get_color())
            == palette.COLORS["ink"]
        )
        with pytest.raises(ValueError):
            mha.plot_attention(random_weights(2, 3, 4), ["a"])
        assert dict(plt.rcParams) == before


def test_the_settings_of_the_reader_do_not_change_the_picture():
    plain = to_svg(mha.plot_attention(random_weights(2, 3, 4)))
    with plt.rc_context(
        {
            "font.size": 17,
            "axes.facecolor": "yellow",
            "image.origin": "lower",
            "text.color": "red",
        }
    ):
        assert to_svg(mha.plot_attention(random_weights(2, 3, 4))) == plain


def test_the_figure_is_open_in_pyplot_and_belongs_to_the_caller():
    figure = mha.plot_attention(random_weights(2, 2))
    assert plt.fignum_exists(figure.number) and plt.gcf() is figure


def test_one_matrix_can_be_drawn_into_axes_of_ones_own():
    figure, (left, right) = plt.subplots(1, 2)
    plotting.draw_weights(right, np.eye(2), ["a", "b"], ["c", "d"])
    assert not left.patches and np.allclose(cell_colors(right)[..., 3], np.eye(2))
    assert tick_labels(right.xaxis) == [(0, "c"), (1, "d")]
    assert figure.axes == [left, right]


# --- cells of a grid ---

RED, GREEN, BLUE, NOTHING = (
    (1.0, 0.0, 0.0, 1.0),
    (0.0, 0.6, 0.0, 1.0),
    (0.0, 0.0, 1.0, 1.0),
    (1.0, 1.0, 0.0, 0.0),
)


def filled(colors, left=0.0, top=0.0, width=1.0, height=1.0):
    """Return axes that hold nothing but the grid, with room around it."""
    _, axes = plt.subplots(figsize=(4, 4), dpi=100)
    axes.set_axis_off()
    colors = np.array(colors)
    plotting.fill_cells(axes, left, top, width, height, colors, linewidth=1)
    rows, columns = colors.shape[:2]
    axes.set_xlim(left - width, left + (columns + 1) * width)
    axes.set_ylim(top + (rows + 1) * height, top - height)
    return axes


def pixels(axes, places):
    """Return the colours, from 0 to 1, that the picture has at these places of the axes."""
    axes.figure.patch.set_alpha(0.0)
    axes.figure.canvas.draw()
    picture = np.asarray(axes.figure.canvas.buffer_rgba()) / 255
    across, up = np.round(axes.transData.transform(places) - 0.5).astype(int).T
    return picture[len(picture) - 1 - up, across]


@pytest.mark.parametrize("place", [(0.0, 0.0, 1.0, 1.0), (-2.0, 3.0, 0.5, 2.0)])
@pytest.mark.parametrize("seed", range(3))
def test_each_cell_has_its_colour_at_its_middle(seed, place):
    rng = np.random.default_rng(seed)
    colors = np.array([RED, GREEN, BLUE, NOTHING])[rng.integers(4, size=(5, 7))]
    left, top, width, height = place
    rows, columns = np.indices((5, 7)).reshape(2, -1)
    middles = np.stack(
        [left + (columns + 0.5) * width, top + (rows + 0.5) * height], axis=1
    )
    drawn = pixels(filled(colors, *place), middles).reshape(5, 7, 4)
    visible = colors[..., 3] > 0
    assert np.allclose(drawn[visible], colors[visible], atol=0.01)
    assert (drawn[~visible, 3] == 0).all() and not visible.all()


def test_equal_neighbours_are_one_shape():
    axes = filled([[RED, RED, BLUE, RED], [RED, BLUE, BLUE, BLUE]])
    shapes = {
        patch.get_facecolor(): patch.get_path().to_polygons()
        for patch in axes.patches[:-1]
    }
    boxes = {
        color: sorted((*polygon.min(axis=0), *polygon.max(axis=0)) for polygon in found)
        for color, found in shapes.items()
    }
    assert boxes == {
        RED: [(0, 0, 2, 1), (0, 1, 1, 2), (3, 0, 4, 1)],
        BLUE: [(1, 1, 4, 2), (2, 0, 3, 1)],
    }
    assert all(patch.get_edgecolor()[3] == 0 for patch in axes.patches[:-1])


def test_transparent_cells_draw_nothing():
    axes = filled([[NOTHING, NOTHING], [NOTHING, RED]])
    assert [patch.get_fill() for patch in axes.patches] == [True, False]
    axes = filled([[NOTHING, NOTHING]])
    (lines,) = axes.patches
    assert not lines.get_fill()
    assert not pixels(axes, [(0.5, 0.5), (1.5, 0.5)])[:, 3].any()


def test_lines_run_around_and_between_all_cells():
    axes = filled([[NOTHING] * 3] * 2, left=-2.0, top=3.0, width=0.5, height=2.0)
    lines = axes.patches[-1]
    starts = np.flatnonzero(lines.get_path().codes == Path.MOVETO)
    parts = np.split(lines.get_path().vertices, starts[1:])
    down = [(x, 3.0, x, 7.0) for x in (-2.0, -1.5, -1.0, -0.5)]
    across = [(-2.0, y, -0.5, y) for y in (3.0, 5.0, 7.0)]
    assert sorted(tuple(part.ravel()) for part in parts) == sorted(down + across)
    assert to_hex(lines.get_edgecolor()) == palette.COLORS["line"]
    assert lines.get_linewidth() == 1


def test_rounding_is_tolerated_on_both_sides_and_no_further():
    plt.close(mha.plot_attention(torch.tensor([[-1e-5, 1 + 1e-5]])))
    for wrong in (-2e-4, 1 + 2e-4):
        with pytest.raises(ValueError, match=r"weights: expected numbers from 0 to 1"):
            mha.plot_attention(torch.tensor([[wrong, 0.5]]))
    with pytest.raises(ValueError, match=r"0\.5 to 1\.0002"):
        mha.plot_attention(torch.tensor([[1.0002, 0.5]]))


@pytest.mark.parametrize("weights", [torch.ones(2, 2) * 1j, np.ones((2, 2)) * 1j])
def test_complex_weights_are_refused(weights):
    with pytest.raises(TypeError, match="weights: expected real numbers"):
        mha.plot_attention(weights)


def test_one_head_is_asked_for_in_a_list():
    with pytest.raises(TypeError, match=r"heads: expected a sequence of int, such as"):
        mha.plot_attention(torch.eye(2)[None], heads=0)
