"""The kinds of positions as a config sees them: rules, limits and numbers of parameters.

`POSITION_RULES` has a row for each choice of `ModelConfig.positions`; `POSITIONS` of
model/positions.py has the computation of each. This file needs no JAX, so that a config is checked
before JAX is imported.
"""

from typing import Any

MAX_TABLE = 2**28  # values of a table of positions: 1 GiB in float32


class PositionRules:
    """The rules of a kind of positions; these defaults are those of "none"."""

    fields: tuple[str, ...] = ()  # the fields of ModelConfig that only this kind reads
    has_table = False  # of max_length rows: longer inputs have no positions
    has_bias = False  # on scores, for each distance

    def check(self, config: Any) -> None:
        """Raise ValueError for a ModelConfig that this kind does not support."""

    def num_parameters(self, config: Any) -> int:
        """The number of parameters in both stacks."""
        return 0


class TableRules(PositionRules):
    """A table of max_length rows, which are added to the embeddings."""

    has_table = True

    def check(self, config: Any) -> None:
        if config.max_length * config.d_model > MAX_TABLE:
            raise ValueError(
                f"{config.positions} positions need max_length × d_model of at most {MAX_TABLE}, "
                f"got max_length={config.max_length}, d_model={config.d_model}"
            )


class SinusoidalRules(TableRules):
    fields = ("sinusoid_layout",)

    def check(self, config: Any) -> None:
        super().check(config)
        if config.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, got {config.d_model}")
        if config.sinusoid_layout == "fairseq" and config.d_model < 4:
            raise ValueError(
                f"sinusoid_layout=fairseq needs d_model of 4 or more, got {config.d_model}"
            )


class LearnedRules(TableRules):
    def num_parameters(self, config: Any) -> int:
        return int(2 * config.max_length * config.d_model)


class RotaryRules(PositionRules):
    def check(self, config: Any) -> None:
        if config.head_size % 2:
            raise ValueError(f"rotary positions need an even head size, got {config.head_size}")


class RelativeRules(PositionRules):
    fields = ("relative_buckets", "relative_distance", "relative_tables")
    has_bias = True

    def check(self, config: Any) -> None:
        if config.relative_distance <= config.relative_buckets // 2:
            raise ValueError(
                "model.relative_distance must be above model.relative_buckets // 2, got "
                f"{config.relative_distance} and {config.relative_buckets}"
            )

    def num_parameters(self, config: Any) -> int:
        per_layer = config.relative_tables == "layer"
        tables = config.num_layers + config.decoder_layers if per_layer else 2
        return int(tables * config.relative_buckets * config.num_heads)


class AlibiRules(PositionRules):
    has_bias = True


POSITION_RULES: dict[str, PositionRules] = {
    "sinusoidal": SinusoidalRules(),
    "learned": LearnedRules(),
    "rotary": RotaryRules(),
    "relative": RelativeRules(),
    "alibi": AlibiRules(),
    "none": PositionRules(),
}
