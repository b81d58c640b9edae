"""Makes `models.jsonl` from two tables that others keep, and from what is written below.

Run it with a Python that has `genai-prices`, and give it the table of `litellm`:

    python3 import.py .../litellm/model_prices_and_context_window_backup.json > models.jsonl

Only figures and facts are taken: names, sizes, dates, prices, and what a model takes.
"""

import datetime
import json
import re
import sys
from importlib.metadata import version

from genai_prices import data

TABLE = json.load(open(sys.argv[1]))
PROVIDERS = {"anthropic": "anthropic", "openai": "openai", "gemini": "google", "xai": "x-ai"}
# Models that do not answer in words, and names of somebody's own tuning.
NOT_WORDS = re.compile(
    r"^ft:|container$|lyria|tts|image|live|audio|realtime|transcribe|omni|voice|veo|imagen|embed|moderation|sora|whisper|dall"
    r"|ft-$|:extended$|^chat|^gpt-chat|nano-banana|^ada|^babbage|^curie|^davinci|^text-|^computer-use$"
)
DATED = re.compile(r"(-\d{8}|-\d{4}-\d{2}-\d{2}|-latest|-\d{4}|-00\d)$")

# Ends of life that the provider's own libraries name.
RETIRES = {
    "claude-2": "2025-07-21", "claude-3-sonnet": "2025-07-21", "claude-3-opus": "2026-01-05",
    "claude-3-7-sonnet": "2026-02-19", "claude-3-5-haiku": "2026-02-19", "claude-opus-4-0": "2026-06-15",
    "claude-sonnet-4-0": "2026-06-15", "claude-mythos-preview": "2026-06-30", "claude-sonnet-4-5": "2026-11-30",
    "gpt-5": "2026-12-11", "gpt-5-mini": "2026-12-11", "gpt-5-nano": "2026-12-11", "gpt-5-pro": "2026-12-11",
    "o3": "2026-12-11", "o3-pro": "2026-12-11",
}
RENAMED = {
    "claude-3-5-haiku-latest": "claude-3-5-haiku", "claude-3-7-sonnet-latest": "claude-3-7-sonnet",
    "claude-3-opus-latest": "claude-3-opus", "claude-opus-4": "claude-opus-4-0", "claude-sonnet-4": "claude-sonnet-4-0",
}
ALIASES = {
    "claude-opus-4-0": ["claude-opus-4"], "claude-sonnet-4-0": ["claude-sonnet-4"],
}
CODE = ["code_execution_20250825", "code_execution_20260120", "code_execution_20260521"]
LEGACY_CODE = ["code_execution_20250522"]
SEARCH = ["web_search_20250305", "web_search_20260209", "web_search_20260318"]
FETCH = ["web_fetch_20250910", "web_fetch_20260209", "web_fetch_20260309", "web_fetch_20260318"]


def anthropic(row, name):
    """What the provider's pages say of a Claude and the tables do not."""
    number = tuple(int(part) for part in re.findall(r"\d", name)[:2])
    new = name.startswith(("claude-fable", "claude-mythos")) or number >= (4, 7)
    features, unsupported = row["features"], []
    if number < (4, 5) and not new:
        if name in ("claude-opus-4-0", "claude-sonnet-4-0", "claude-3-7-sonnet", "claude-3-5-haiku", "claude-opus-4-1"):
            row["hosted_versions"] = {"code_execution": ["code_execution_20250522", "code_execution_20250825"]}
            features["code_execution"] = True
        else:
            features["code_execution"] = False
        features.update(tools=number >= (3,), tool_search=False, structured_output=False)
        if not name.startswith(("claude-opus-4", "claude-sonnet-4", "claude-3-7")):
            features["reasoning"] = False
        row["efforts"] = []
        unsupported += ["adaptive_thinking"]
    else:
        basic = name in ("claude-haiku-4-5", "claude-sonnet-4-5", "claude-opus-4-5")
        row["hosted_versions"] = {
            "code_execution": LEGACY_CODE + CODE if name in ("claude-haiku-4-5", "claude-sonnet-4-5") else CODE,
            "web_search": SEARCH[:1] if basic else SEARCH,
            "web_fetch": FETCH[:1] if basic else FETCH,
        }
        features.update(code_execution=True, web_search=True, web_fetch=True)
        if name != "claude-haiku-4-5":
            features["tool_search"] = True
        row["efforts"] = {
            "claude-haiku-4-5": [], "claude-sonnet-4-5": [], "claude-opus-4-5": ["low", "medium", "high"],
            "claude-opus-4-6": ["low", "medium", "high", "max"], "claude-sonnet-4-6": ["low", "medium", "high", "max"],
        }.get(name, ["low", "medium", "high", "xhigh", "max"])
        if basic:
            unsupported += ["adaptive_thinking"]
    if new:
        unsupported += ["temperature", "top_p", "top_k", "thinking_budget"]
    if features.pop("thinking_always_on", False):
        unsupported += ["thinking_off"]
    features["file_search"] = False
    features["compaction"] = new or number >= (4, 6)
    features["tool_result_clearing"] = new or number >= (4, 0)
    row["unsupported_settings"] = unsupported


def openai(row, name, known):
    features = row["features"]
    features["tool_result_clearing"] = False
    if re.match(r"gpt-(4\.1|5|6)", name):
        features["compaction"] = True
    if not features.get("reasoning"):
        if features.get("tools"):
            row["efforts"] = []
        return
    levels = ["low", "medium", "high"]
    said = [known.get(f"supports_{level}_reasoning_effort") for level in ("minimal", "low", "xhigh", "max")]
    if any(flag is not None for flag in said):
        minimal, low, xhigh, most = said
        if low is False:
            levels.remove("low")
        row["efforts"] = (["minimal"] if minimal else []) + levels + (["xhigh"] if xhigh else []) + (["max"] if most else [])
    if known.get("supports_none_reasoning_effort"):
        row["unsupported_while_thinking"] = ["temperature", "top_p"]
        row["thinks_by_default"] = known.get("default_reasoning_effort") != "none"
    else:
        row["unsupported_settings"] = ["temperature", "top_p", "thinking_off"]


def gemini(row, name, known):
    number = re.match(r"gemini-(\d+(?:\.\d+)?)", name)
    number = float(number.group(1)) if number else 3.0 if name.endswith("-latest") else 0.0
    if number >= 2:
        row["features"].update(code_execution=True, tool_search=False)
    if number >= 2.5:
        row["features"]["file_search"] = True
    if known.get("supports_url_context"):
        row["features"]["web_fetch"] = True
    if known.get("supports_sampling_params") is False:
        row["unsupported_settings"] = ["temperature", "top_p", "top_k"]


NAMES = {
    "function_calling": "tools", "parallel_function_calling": "parallel_tools", "forced_tool_use": "forced_tool_choice",
    "vision": "images", "pdf_input": "documents", "response_schema": "structured_output", "reasoning": "reasoning",
    "prompt_caching": "prompt_caching", "tool_search": "tool_search", "web_search": "web_search",
    "computer_use": "computer_use", "mid_conversation_system": "mid_conversation_system",
}


def number(value):
    value = round(float(value), 9)
    return int(value) if value == int(value) else value


def rates(prices):
    """The rates of a `ModelPrice`, with one set per threshold."""
    names = {
        "input_mtok": "input", "output_mtok": "output", "cache_read_mtok": "cache_read",
        "cache_write_mtok": "cache_write", "cache_write_1h_mtok": "cache_write_1h",
    }
    base, above = {}, {}
    for theirs, ours in names.items():
        value = getattr(prices, theirs, None)
        if value is None:
            continue
        if hasattr(value, "base"):
            base[ours] = number(value.base)
            for tier in value.tiers:
                above.setdefault(tier.start, {})[ours] = number(tier.price)
        else:
            base[ours] = number(value)
    for start, tier in above.items():
        for name, value in base.items():
            tier.setdefault(name, value)
    if above:
        base["tiers"] = [{"input_tokens": start, **above[start]} for start in sorted(above)]
    return base


def uses(prices):
    found = {}
    for theirs, ours in (("web_searches_kcount", "web_search"), ("storage_searches_kcount", "file_search")):
        value = getattr(prices, theirs, None)
        if value is not None:
            found[ours] = number(float(value) / 1000)
    return found


def start(constraint):
    return getattr(constraint, "start_date", None)


def periods(model):
    """The prices of a model by the day from which they hold; the first may hold since ever."""
    conditional = model.prices if isinstance(model.prices, list) else None
    result = []
    for price in conditional or [None]:
        day, prices = (start(price.constraint), price.prices) if price else (None, model.prices)
        period = {**({"from": str(day)} if day else {}), **rates(prices)}
        if uses(prices):
            period["hosted_tools"] = uses(prices)
        if "input" in period and "output" in period:
            result.append(period)
    return result


def services(model, prices):
    """The prices of other service levels, which hold no longer than the standard price beside which they stood."""
    changes = [period["from"] for period in prices if "from" in period]
    result = {}
    for variant in model.price_variants or []:
        name, found, day = next(iter(variant.when.values())), rates(variant.prices), start(variant.constraint)
        if "input" in found and "output" in found:
            result.setdefault(name, []).append({**({"from": str(day)} if day else {}), **found})
    for entries in result.values():
        entries.sort(key=lambda entry: entry.get("from", ""))
        for entry, later in zip(entries, entries[1:] + [None]):
            end = [day for day in changes if day > entry.get("from", "") and (later is None or day < later["from"])]
            if end:
                entry["until"] = min(end)
    return result


def one(known, suffix):
    names = {
        "input_cost_per_token": "input", "output_cost_per_token": "output",
        "cache_read_input_token_cost": "cache_read", "cache_creation_input_token_cost": "cache_write",
    }
    found = {ours: number(known[theirs + suffix] * 1e6) for theirs, ours in names.items() if known.get(theirs + suffix) is not None}
    return found if "input" in found and "output" in found else {}


def batch_of(known):
    return {"batch": [one(known, "_batches")]} if one(known, "_batches") else {}


def from_table(known):
    """The prices of a row of the other table, which knows no dates."""
    base = one(known, "")
    if not base:
        return []
    for key in known:
        tier = re.match(r"input_cost_per_token_above_(\d+)k_tokens$", key)
        if tier:
            above = {**base, **one(known, f"_above_{tier.group(1)}k_tokens")}
            base.setdefault("tiers", []).append({"input_tokens": int(tier.group(1)) * 1000, **{k: v for k, v in above.items() if k != "tiers"}})
    search = (known.get("search_context_cost_per_query") or {}).get("search_context_size_medium")
    if search:
        base["hosted_tools"] = {"web_search": number(search)}
    return [base]


def main():
    rows, dates = {}, {}
    for ours, theirs in PROVIDERS.items():
        provider = next(provider for provider in data.providers if provider.id == theirs)
        names = {}
        for name, known in TABLE.items():
            if known.get("litellm_provider") != ours or known.get("mode") not in ("chat", "responses"):
                continue
            name = name.split("/")[-1]
            if NOT_WORDS.search(name):
                continue
            base = DATED.sub("", name)
            if known.get("deprecation_date"):
                dates.setdefault((ours, base), []).append(known["deprecation_date"])
            # `NAME-2026-01-31` is found by `NAME`, so that only the shortest name of each is kept.
            if base not in names or name == base:
                names[base] = (name, known)
        for model in provider.models:
            name = RENAMED.get(model.id, model.id)
            if not NOT_WORDS.search(name):
                base = DATED.sub("", name)
                if base not in names or name == base:
                    names[base] = (name, names.get(base, (name, {}))[1])
        for base, (name, known) in names.items():
            if ours == "gemini" and not name.startswith(("gemini", "gemma")):
                continue
            row = {"id": f"{ours}/{name}"}
            aliases = ALIASES.get(name, []) + ([base] if base != name else [])
            if aliases:
                row["aliases"] = aliases
            model = next((m for m in provider.models if RENAMED.get(m.id, m.id) == name), None)
            model = model or next((m for m in provider.models if m.is_match(name)), None)
            window = max((model and model.context_window) or 0, known.get("max_input_tokens") or 0)
            if window:
                row["context_window"] = int(window)
            if known.get("max_input_tokens") and known["max_input_tokens"] != window:
                row["max_input_tokens"] = int(known["max_input_tokens"])
            if known.get("max_output_tokens"):
                row["max_output_tokens"] = int(known["max_output_tokens"])
            retires = RETIRES.get(name) or known.get("deprecation_date") or max(dates.get((ours, base), [""]))
            if retires:
                row["retires"] = retires
            features = {NAMES[key[9:]]: value for key, value in known.items() if key[9:] in NAMES and isinstance(value, bool)}
            if known.get("thinking_always_on"):
                features["thinking_always_on"] = True
            row["features"] = features
            if ours == "anthropic":
                anthropic(row, name)
            elif ours == "openai":
                openai(row, name, known)
            else:
                row["features"].update(compaction=False, tool_result_clearing=False)
            if ours == "gemini":
                gemini(row, name, known)
            row["features"] = dict(sorted(row["features"].items()))
            prices = (model and periods(model)) or from_table(known)
            if prices:
                row["prices"] = prices
            batch = services(model, prices) if model else batch_of(known)
            if batch and prices:
                row["services"] = batch
            rows[row["id"]] = row
    about = {
        "date": str(datetime.date.today()),
        "sources": [
            f"genai-prices {version('genai-prices')} (prices with their dates)",
            f"litellm {sys.argv[2] if len(sys.argv) > 2 else 'table'} (sizes, features, ends of life)",
            "the providers' libraries and pages, November 2026 (versions of hosted tools, settings that are refused)",
        ],
        "code_execution": {
            "anthropic": {
                "usd_per_hour": 0.05, "minimum_minutes": 5, "free_hours_per_month": 1550, "files_start_billing": True,
                "free_with": [version for version in SEARCH + FETCH if version[-8:] >= "20260209"],
            },
            "openai": {"usd_per_hour": 0.09, "minimum_minutes": 5},
            "gemini": {"usd_per_hour": 0},
        },
        "hosted_tool_prices": {"anthropic": {"web_fetch": 0}, "gemini": {"web_fetch": 0, "code_execution": 0}},
    }
    print(json.dumps(about, separators=(",", ":")))
    for name in sorted(rows):
        print(json.dumps(rows[name], separators=(",", ":")))


main()
