"""Models and prices. The engine has no list of models for Python, so none is copied here."""

from __future__ import annotations

from typing import NoReturn

from toolpost.compat.llm_factory_toolkit.exceptions import UnsupportedFeatureError


def compute_cost(
    model: str, *, input_tokens: int, output_tokens: int, pricing: dict[str, float] | None = None
) -> float | None:
    """US dollars for tokens at a `pricing`; None if it has no price."""
    if pricing is None:
        _absent("compute_cost without pricing")
    rates = pricing.get("input_cost_per_1m"), pricing.get("output_cost_per_1m")
    if rates[0] is None or rates[1] is None:
        return None
    return (input_tokens * rates[0] + output_tokens * rates[1]) / 1_000_000


def list_models(provider: str | None = None) -> NoReturn:
    """Raise `UnsupportedFeatureError`."""
    _absent("list_models")


def get_model_info(model_id: str) -> NoReturn:
    """Raise `UnsupportedFeatureError`."""
    _absent("get_model_info")


def _absent(name: str) -> NoReturn:
    raise UnsupportedFeatureError(f"Toolpost has no `{name}`: use any model of a provider, and `cost_usd`.")
