"""Multi-head attention as a module that can be trained: what chapter 4 builds."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from .checks import (
    check_at_least,
    check_divisible,
    check_module_inputs,
    check_probability,
    with_head_axis,
)
from .fast_path import attend_without_weights
from .head_splitting import combine_heads, split_heads
from .single_head import scaled_dot_product_attention
from .torch_conversion import copy_projections, torch_projections


class MultiHeadAttention(nn.Module):
    """Multi-head attention: project, split into heads, attend, combine, project.

    Parameters
    ----------
    d_model : int
        Width of the queries and of the output.
    num_heads : int
        Number of heads; must divide ``d_model``.
    dropout : float
        Probability, in [0, 1), that a weight is dropped while training.
    bias : bool
        Whether the four projections add a bias.
    kdim, vdim : int, optional
        Widths of keys and values, where they differ from ``d_model``.

    Raises
    ------
    TypeError
        If a width or number is not an int.
    ValueError
        If ``num_heads`` does not divide ``d_model``, a number is less than 1, or ``dropout`` lies outside [0, 1).

    Source
    ------
    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
    ) -> None:
        super().__init__()
        kdim = d_model if kdim is None else kdim
        vdim = d_model if vdim is None else vdim
        for name, width in (("d_model", d_model), ("kdim", kdim), ("vdim", vdim)):
            check_at_least(name, width)
        check_divisible(d_model, num_heads)
        check_probability("dropout", dropout)
        self.d_model, self.num_heads, self.dropout = d_model, num_heads, dropout
        self.W_q = nn.Linear(d_model, d_model, bias=bias)
        self.W_k = nn.Linear(kdim, d_model, bias=bias)
        self.W_v = nn.Linear(vdim, d_model, bias=bias)
        self.W_o = nn.Linear(d_model, d_model, bias=bias)

    def forward(
        self,
        query: Float[Tensor, "*batch query d_model"],
        key: Float[Tensor, "*batch key kdim"] | None = None,
        value: Float[Tensor, "*batch key vdim"] | None = None,
        mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
        *,
        is_causal: bool = False,
        need_weights: bool = True,
    ) -> tuple[
        Float[Tensor, "*batch query d_model"],
        Float[Tensor, "*batch heads query key"] | None,
    ]:
        """Let every query attend to the keys, in all heads.

        Parameters
        ----------
        query : Tensor
            ``(batch, query, d_model)``, or ``(query, d_model)`` for one sentence; then nothing below has a batch
            axis, except a mask of more than two axes, whose batch is 1.
        key : Tensor, optional
            ``(batch, key, kdim)``. Default: ``query`` (self-attention).
        value : Tensor, optional
            ``(batch, key, vdim)``. Default: ``key``. Hidden keys and values still have to be numbers: NaN or
            infinite ones can turn all outputs of their sentence into NaN.
        mask : Tensor, optional
            ``(query, key)``, ``(batch, query, key)`` or ``(batch, heads, query, key)``, the last with 1s where it is
            to broadcast. Boolean: ``True`` = may attend. Floating: added to the scores.
        is_causal : bool
            Hide the future, aligned to the end. Combines with ``mask``.
        need_weights : bool
            Whether to return the weights. Without them a fused kernel does the work (which has no second
            derivatives; on a CPU there is none with dropout).

        Returns
        -------
        output : Tensor
            ``(batch, query, d_model)``.
        weights : Tensor or None
            ``(batch, heads, query, key)``, before dropout.

        Raises
        ------
        TypeError
            If an input is not a floating-point tensor, or the mask is neither boolean nor floating.
        ValueError
            If widths, lengths, batch sizes or the mask do not fit.
        """
        key = query if key is None else key
        value = key if value is None else value
        widths = (self.d_model, self.W_k.in_features, self.W_v.in_features)
        check_module_inputs(query, key, value, widths, self.W_q.weight.dtype)
        unbatched = query.dim() == 2
        if unbatched:
            query, key, value = query[None], key[None], value[None]

        q = split_heads(self.W_q(query), self.num_heads)  # (batch, heads, query, d_k)
        k = split_heads(self.W_k(key), self.num_heads)  # (batch, heads, key, d_k)
        v = split_heads(self.W_v(value), self.num_heads)  # (batch, heads, key, d_k)
        mask = with_head_axis(mask, (*q.shape[:-1], k.shape[-2]), q.device)
        options = {"is_causal": is_causal, "dropout_p": self.dropout * self.training}
        if need_weights:
            heads, weights = scaled_dot_product_attention(q, k, v, mask, **options)
        else:
            heads, weights = attend_without_weights(q, k, v, mask, **options), None
        output = self.W_o(combine_heads(heads))  # (batch, query, d_model)

        if unbatched:
            output, weights = output[0], None if weights is None else weights[0]
        return output, weights

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """Return a copy of PyTorch's module, with the same parameters, dtype, device and mode.

        The copy is batch-first, whatever ``module`` is, and its boolean masks mean the opposite. Frozen parameters
        stay frozen.

        Parameters
        ----------
        module : torch.nn.MultiheadAttention
            Without ``add_bias_kv`` and ``add_zero_attn``, which this module does not have.

        Raises
        ------
        TypeError
            If ``module`` is another kind of module.
        ValueError
            If the module uses one of these two, or its parameters differ in dtype or device.
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise TypeError(
                f"module: expected a torch.nn.MultiheadAttention, got {type(module).__name__}"
            )
        if (
            module.bias_k is not None
            or module.bias_v is not None
            or module.add_zero_attn
        ):
            raise ValueError("module: expected add_bias_kv and add_zero_attn to be off")
        copy = cls(
            module.embed_dim,
            module.num_heads,
            dropout=module.dropout,
            bias=module.in_proj_bias is not None,
            kdim=module.kdim,
            vdim=module.vdim,
        )
        copy.to(module.out_proj.weight)
        copy_projections(torch_projections(module), copy._projections(), copy)
        return copy.train(module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """Return a copy of this module as PyTorch's, batch-first, in the same dtype, device and mode.

        PyTorch packs the projections of queries, keys and values, so that they are frozen all or none: the packed
        parameter is trainable if one of the three is.

        Raises
        ------
        ValueError
            If this module's parameters differ in dtype or device.
        """
        copy = nn.MultiheadAttention(
            self.d_model,
            self.num_heads,
            dropout=self.dropout,
            bias=self.W_q.bias is not None,
            kdim=self.W_k.in_features,
            vdim=self.W_v.in_features,
            batch_first=True,
        )
        copy.to(self.W_o.weight)
        copy_projections(self._projections(), torch_projections(copy), copy)
        return copy.train(self.training)

    def _projections(self) -> list[list[Tensor]]:
        # Not .parameters(): where a weight is computed (pruned, normalised), that is what it is computed from.
        return [
            [W.weight] if W.bias is None else [W.weight, W.bias]
            for W in (self.W_q, self.W_k, self.W_v, self.W_o)
        ]
