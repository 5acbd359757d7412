"""Claims: sentences of the book that could be false, each with the code that would notice."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def claim(text: str) -> Iterator[None]:
    """Run a check and print the sentence it proves.

    Parameters
    ----------
    text : str
        The claim: one full sentence that could be false.

    Raises
    ------
    ValueError
        If the sentence is empty.
    AssertionError
        If the body raises anything: the message is the sentence and what went wrong.

    Examples
    --------
    >>> with claim("Two and two make four."):
    ...     assert 2 + 2 == 4
    ✓ Two and two make four.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"text: expected a sentence, got {text!r}")
    try:
        yield
    except Exception as error:
        raise AssertionError(
            f"This claim does not hold: {text}\n{type(error).__name__}: {error}"
        ) from error
    print(f"✓ {text}")
