"""Claims print their sentence, or raise with it."""

import pytest

import mha


def test_a_claim_that_holds_prints_its_sentence(capsys):
    with mha.claim("Two and two make four."):
        assert 2 + 2 == 4
    captured = capsys.readouterr()
    assert captured.out == "✓ Two and two make four.\n"
    assert captured.err == ""


@pytest.mark.parametrize(
    "error",
    [
        AssertionError(),
        AssertionError("3 != 4"),
        ValueError("bad shape"),
        KeyError("W_q"),
        ZeroDivisionError("division"),
        RuntimeError("size mismatch"),
        StopIteration("end"),
        NotImplementedError(),
    ],
    ids=repr,
)
def test_a_claim_that_fails_raises_with_its_sentence_and_the_reason(error, capsys):
    with pytest.raises(AssertionError) as caught, mha.claim("Two and two make five."):
        raise error
    message = str(caught.value)
    assert "This claim does not hold: Two and two make five." in message
    assert type(error).__name__ in message and str(error) in message
    assert caught.value.__cause__ is error
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_is_no_failed_claim(interruption, capsys):
    with pytest.raises(interruption), mha.claim("It ends."):
        raise interruption
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_a_claim_needs_a_sentence(text):
    with pytest.raises(ValueError, match="text: expected a sentence"), mha.claim(text):
        pass


def test_a_claim_inside_a_claim(capsys):
    with mha.claim("Outer."), mha.claim("Inner."):
        assert True
    assert capsys.readouterr().out == "✓ Inner.\n✓ Outer.\n"


def test_braces_and_percent_signs_are_printed_as_they_are(capsys):
    with mha.claim("Weights {sum} to 100 % of $1$."):
        assert True
    assert capsys.readouterr().out == "✓ Weights {sum} to 100 % of $1$.\n"
