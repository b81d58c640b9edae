"""The errors of the toolkit."""

from __future__ import annotations


class LLMToolkitError(Exception):
    """The base of all errors."""


class ConfigurationError(LLMToolkitError):
    """A missing API key, an unknown model, or an option with an invalid value."""


class ProviderError(LLMToolkitError):
    """A run without an answer: the provider failed or refused."""


class ToolError(LLMToolkitError):
    """An invalid registration or nested call of a tool."""


class UnsupportedFeatureError(LLMToolkitError):
    """An option that Toolpost does not have. The message names its replacement."""


class RetryExhaustedError(ProviderError):
    """A request that failed after all retries. Toolpost raises `ProviderError` instead."""
