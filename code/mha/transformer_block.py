"""The block around attention: residual connections, normalisation and a feed-forward network."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from .checks import check_at_least, check_tokens
from .multi_head import MultiHeadAttention


class TransformerBlock(nn.Module):
    """Self-attention and a feed-forward network, each with a residual connection and a LayerNorm.

    Parameters
    ----------
    d_model, num_heads : int
        As in :class:`MultiHeadAttention`.
    d_ff : int
        Width of the feed-forward network's hidden layer.
    dropout : float
        Probability, in [0, 1), of dropout on the weights and on what each part adds.
    norm_first : bool
        ``True`` (pre-norm): normalise what goes into each part. ``False`` (post-norm, as in the paper): normalise
        after adding.

    Source
    ------
    Vaswani et al. 2017, "Attention Is All You Need", section 3.1 (post-norm); Xiong et al. 2020, "On Layer
    Normalization in the Transformer Architecture" (pre-norm).
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        dropout: float = 0.0,
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        check_at_least("d_ff", d_ff)
        self.d_model, self.norm_first = d_model, norm_first
        self.attention = MultiHeadAttention(d_model, num_heads, dropout=dropout)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model)
        )
        self.norm_1, self.norm_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "*batch seq d_model"],
        mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
        *,
        is_causal: bool = False,
    ) -> Float[Tensor, "*batch seq d_model"]:
        """Return the tokens after attention and feed-forward network.

        Parameters
        ----------
        x : Tensor
            ``(batch, seq, d_model)`` or ``(seq, d_model)``.
        mask, is_causal
            As in :class:`MultiHeadAttention`.

        Raises
        ------
        TypeError
            If ``x`` is not a floating-point tensor of the block's dtype, or the mask neither boolean nor floating.
        ValueError
            If the width or the mask does not fit.
        """
        check_tokens("x", x, self.d_model, self.norm_1.weight.dtype)

        def attend(x: Tensor) -> Tensor:
            return self.attention(
                x, mask=mask, is_causal=is_causal, need_weights=False
            )[0]

        if self.norm_first:
            x = x + self.dropout(attend(self.norm_1(x)))
            return x + self.dropout(self.feed_forward(self.norm_2(x)))
        x = self.norm_1(x + self.dropout(attend(x)))
        return self.norm_2(x + self.dropout(self.feed_forward(x)))
