"""Heads side by side: what each adds, and that none sees another within its layer."""

import copy

import pytest
import torch
from torch.testing import assert_close

import mha
from mha.expert_team import head_contributions, head_influence

WIDTH, SEQ = 12, 5


def module(heads=3, seed=0, **options):
    torch.manual_seed(seed)
    return mha.MultiHeadAttention(WIDTH, heads, **options)


def tokens(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, SEQ, WIDTH, generator=generator)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_contributions_and_the_bias_are_the_output(heads, is_causal):
    team, x = module(heads), tokens()
    added = head_contributions(team, x, is_causal=is_causal)
    assert added.shape == (heads, 2, SEQ, WIDTH)
    output, _ = team(x, is_causal=is_causal)
    assert_close(added.sum(dim=0) + team.W_o.bias, output)


@pytest.mark.parametrize("heads", [2, 3])
def test_a_contribution_is_the_output_when_the_others_are_silent(heads):
    team, x = module(heads, bias=False), tokens()
    added = head_contributions(team, x)
    for head in range(heads):
        alone = copy.deepcopy(team)
        with torch.no_grad():
            rows = alone.W_v.weight.view(heads, -1, WIDTH)
            for other in range(heads):
                if other != head:
                    rows[other] = 0.0
        assert_close(added[head], alone(x)[0])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_within_a_layer_no_head_sees_another(heads, bias):
    team, x = module(heads, bias=bias), tokens()
    reached = head_influence(team, lambda changed: head_contributions(changed, x))
    assert torch.equal(reached, torch.eye(heads).bool())


def test_in_the_next_layer_all_see_all():
    first, second, x = module(3), module(4, seed=1), tokens()
    reached = head_influence(
        first, lambda changed: head_contributions(second, x + changed(x)[0])
    )
    assert reached.shape == (4, 3) and reached.all()


def test_influence_names_the_head_that_was_changed():
    team, x = module(3), tokens()

    def leaking(changed):
        added = head_contributions(changed, x)
        added[0] += added[2]  # head 0 sees head 2
        return added

    expected = torch.eye(3).bool()
    expected[0, 2] = True
    assert torch.equal(head_influence(team, leaking), expected)


@pytest.mark.parametrize("name", ["W_q", "W_k", "W_v"])
def test_all_three_projections_are_changed(name):
    team, before = module(3), copy.deepcopy(module(3).state_dict())

    def read(changed):
        return getattr(changed, name).weight.view(3, -1).clone()

    assert torch.equal(head_influence(team, read), torch.eye(3).bool())
    for key, numbers in team.state_dict().items():
        assert torch.equal(numbers, before[key])


def test_heads_share_their_loss_alone():
    """Forward none sees another; backward each is told what the others have left to do."""
    team, x = module(2), tokens()
    other = copy.deepcopy(team)
    with torch.no_grad():
        other.W_v.weight[WIDTH // 2 :] += 0.5  # head 1
    gradients = []
    for one in (team, other):
        one(x)[0].square().sum().backward()
        gradients.append(one.W_v.weight.grad[: WIDTH // 2])  # head 0
    assert not torch.allclose(*gradients)
    assert_close(head_contributions(team, x)[0], head_contributions(other, x)[0])


# --- dropout, and what is no team ---


def test_in_training_with_dropout_no_head_sees_another():
    team, x = module(3, dropout=0.5).train(), tokens()

    def read(changed):
        """Run the module itself, so that its dropout would count, with all other heads' rows of W_o at 0."""
        added = []
        for head in range(3):
            alone = copy.deepcopy(changed)
            alone.W_o.weight.unflatten(1, (3, -1))[:, torch.arange(3) != head] = 0.0
            added.append(alone(x)[0])
        return torch.stack(added)

    assert torch.equal(head_influence(team, read), torch.eye(3).bool())
    assert team.training


def test_read_never_gets_the_module_itself():
    team, seen = module(3), []

    def read(changed):
        seen.append(changed)
        with torch.no_grad():
            added = head_contributions(changed, tokens())
            changed.W_q.weight.zero_()
        return added

    before = copy.deepcopy(team.state_dict())
    assert torch.equal(head_influence(team, read), torch.eye(3).bool())
    assert len(seen) == 4 and all(one is not team for one in seen)
    assert all(torch.equal(team.state_dict()[key], before[key]) for key in before)


def test_a_number_for_each_head_is_enough_and_nan_is_no_change():
    team, x = module(3), tokens()
    reached = head_influence(
        team, lambda m: head_contributions(m, x).abs().flatten(1).sum(dim=1)
    )
    assert torch.equal(reached, torch.eye(3).bool())
    hidden = head_influence(team, lambda m: torch.full((2, 4), torch.nan))
    assert hidden.shape == (2, 3) and not hidden.any()


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.rand(SEQ, WIDTH), ValueError, r"x: expected shape \(batch, seq, 12\), got"),
        (torch.rand(1, 2, SEQ, WIDTH), ValueError, r"x: expected .* got \(1, 2, 5, 12\)"),
        (torch.rand(2, SEQ, 8), ValueError, r"x: expected .*12.* got \(2, 5, 8\)"),
        (torch.rand(2, SEQ, WIDTH).double(), TypeError, "x: expected the module's dtype"),
        (torch.zeros(2, SEQ, WIDTH).long(), TypeError, "x: expected a floating-point tensor"),
        ([[[1.0] * WIDTH]], TypeError, "x: expected a torch.Tensor, got list"),
    ],
)  # fmt: skip
def test_tokens_that_do_not_fit(x, error, message):
    with pytest.raises(error, match=message):
        head_contributions(module(3), x)


def test_keys_of_another_width_cannot_be_the_tokens():
    with pytest.raises(ValueError, match=r"x: expected .*8.* got \(2, 5, 12\)"):
        head_contributions(module(3, kdim=8), tokens())


def test_what_is_no_team():
    with pytest.raises(TypeError, match="module: expected a MultiHeadAttention, got"):
        head_contributions(mha.SingleHeadAttention(WIDTH), tokens())
    with pytest.raises(TypeError, match="module: expected a MultiHeadAttention, got"):
        head_influence(torch.nn.Identity(), lambda m: tokens())


@pytest.mark.parametrize(
    ("read", "error", "message"),
    [
        (lambda m: m(tokens()), TypeError, "output of read: expected a torch.Tensor, got tuple"),
        (lambda m: torch.tensor(1.0), ValueError, r"output of read: expected shape \(heads, …\), got"),
        (lambda m: torch.ones(0, 3), ValueError, "number of heads in the output of read: expected at least 1"),
        (lambda m, sizes=[1, 2]: torch.ones(sizes.pop(), 3), ValueError, r"expected shape \(2, 3\), as before"),
    ],
)  # fmt: skip
def test_what_read_must_return(read, error, message):
    with pytest.raises(error, match=message):
        head_influence(module(3), read)
