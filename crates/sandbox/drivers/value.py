# JSON of the values of Python code: exact where JSON can be, else the text of `repr` with the type. One text for all
# drivers of Python, which compile it: that of a session at its start, the other one where a value needs it.
class Value:
    # Levels of lists and dictionaries; deeper ones are text.
    MAX_DEPTH = 64
    # Items of all lists and dictionaries, each of which counts as some more; what has more is beyond any limit.
    MAX_ITEMS, CONTAINER = 5_000_000, 10
    # Bytes and rows of a table, and elements of an array with data.
    MAX_TABLE, MAX_ROWS, MAX_ELEMENTS = 60_000, 1000, 10_000
    MAX_TEXT = 4000
    SCALARS = {type(None), bool, int, float, str}
    EXACT = SCALARS | {list, tuple, dict}

    class Unfit(Exception):
        # The whole value is text: it has too many items.
        pass

    def describe(self, value):
        # JSON as bytes; none of `None`, and none of what drawing returns.
        kind = type(value)
        parts = value[:10] if kind in (list, tuple) else [value]
        if value is None or any(str(type(part).__module__).startswith("matplotlib.") for part in parts):
            return b""
        import json
        options = {"allow_nan": False, "ensure_ascii": False, "check_circular": False, "separators": (",", ":")}
        self.left = self.MAX_ITEMS
        try:
            if self.is_exact(value, 0):
                return json.dumps(value, **options).encode("utf-8")
        except (ValueError, RecursionError):
            # NaN, a surrogate, or an integer of too many digits.
            pass
        self.left, self.open = self.MAX_ITEMS, set()
        try:
            shown = self.plain(value, 0)
        except self.Unfit:
            shown = self.text(value)
        return json.dumps(shown, **options).encode("utf-8")

    def is_exact(self, value, depth):
        # Whether all types are those of JSON; at the speed of C for flat lists.
        kind = type(value)
        if kind in self.SCALARS:
            return True
        if kind is dict:
            if not set(map(type, value)) <= {str}:
                return False
            value = value.values()
        elif kind is not list and kind is not tuple:
            return False
        self.left -= len(value) + self.CONTAINER
        if self.left < 0:
            return False
        kinds = set(map(type, value))
        if depth >= self.MAX_DEPTH or not kinds <= self.EXACT:
            return False
        return kinds <= self.SCALARS or all(self.is_exact(item, depth + 1) for item in value)

    def plain(self, value, depth):
        # The value for `json`: its exact parts, and the type and text of the others.
        import sys
        if value is None or value is True or value is False:
            return value
        if isinstance(value, int):
            if int.bit_length(value) > 10_000:
                try:
                    int.__repr__(value)
                except ValueError:
                    return self.text(value, int.__format__(value, "#x"))
            return value
        if isinstance(value, float):
            return value if float.__sub__(value, value) == 0 else self.text(value)
        if isinstance(value, str):
            return value if self.is_unicode(value) else self.text(value, ascii(value))
        if isinstance(value, (list, tuple)):
            items = (list if isinstance(value, list) else tuple).__iter__(value)
            return self.within(value, depth, lambda: [self.plain(item, depth + 1) for item in items])
        if isinstance(value, dict):
            if not all(isinstance(key, str) and self.is_unicode(key) for key in dict.__iter__(value)):
                return self.text(value)
            items = dict.items(value)
            return self.within(value, depth, lambda: {str(key): self.plain(item, depth + 1) for key, item in items})
        pandas, numpy = sys.modules.get("pandas"), sys.modules.get("numpy")
        try:
            if isinstance(value, getattr(pandas, "DataFrame", ())) or isinstance(value, getattr(pandas, "Series", ())):
                return self.table(value, pandas, depth)
            if isinstance(value, getattr(numpy, "generic", ())):
                return self.scalar(value)
            if isinstance(value, getattr(numpy, "ndarray", ())):
                return self.array(value, depth)
        except self.Unfit:
            raise
        except Exception:
            pass
        return self.text(value)

    def within(self, value, depth, items):
        # The items of a list or a dictionary.
        self.left -= len(value) + self.CONTAINER
        if self.left < 0:
            raise self.Unfit
        if depth >= self.MAX_DEPTH or id(value) in self.open:
            return self.text(value)
        self.open.add(id(value))
        try:
            return items()
        finally:
            self.open.discard(id(value))

    @staticmethod
    def is_unicode(text):
        try:
            return str.isascii(text) or bool(str.encode(text))
        except UnicodeEncodeError:
            return False

    def text(self, value, text=None):
        # The type and the text of a value that JSON cannot hold.
        kind = type(value)
        name = kind.__qualname__ if kind.__module__ == "builtins" else "%s.%s" % (kind.__module__, kind.__qualname__)
        try:
            if self.left < 0:
                raise RecursionError
            text = repr(value) if text is None else text
        except RecursionError:
            # Too deep or too large: the first items of each level.
            import reprlib
            text = reprlib.repr(value) + (" of %d items" % len(value) if self.left < 0 else "")
        except Exception as error:
            text = "<%s object; its repr raised %s>" % (name, type(error).__qualname__)
        return {"type": self.clean(name), "text": self.clean(text)}

    @staticmethod
    def clean(text):
        return str.encode(text, "utf-8", "backslashreplace").decode("utf-8")

    def short(self, text):
        return text if len(text) <= self.MAX_TEXT else text[: self.MAX_TEXT] + "…"

    # numpy and pandas

    def scalar(self, value):
        # Of numpy. Its type is not part of a number.
        kind = value.dtype.kind
        if kind in "biu":
            return value.item()
        if kind == "f" and float(value) == value:
            return self.plain(float(value), 0)
        return self.text(value)

    def array(self, value, depth):
        shown = {"type": "ndarray", "shape": list(value.shape), "dtype": str(value.dtype)}
        shown["text"] = self.clean(self.short(str(value)))
        if value.size <= self.MAX_ELEMENTS:
            # Times as integers would lose their unit.
            items = (value.astype(str) if value.dtype.kind in "mM" else value).tolist()
            shown["data"] = self.plain(items, depth)
        return shown

    def table(self, value, pandas, depth):
        # A frame as its rows and as text; a long one as its first rows.
        import json
        frame = value.to_frame() if isinstance(value, pandas.Series) else value
        shown = {"type": type(value).__name__, "shape": list(value.shape)}
        limits = {"max_rows": 20} if frame is not value else {"max_rows": 20, "max_cols": 100}
        shown["text"] = self.clean(self.short(value.to_string(**limits)))
        cells = lambda items: [self.cell(item, pandas, depth) for item in items]
        shown["dtypes"] = [str(kind) for kind in frame.dtypes]
        # A cell has at least a character and a comma.
        shown["rows"] = min(len(frame), self.MAX_ROWS, self.MAX_TABLE // (2 * len(frame.columns) + 1))
        shown["columns"] = cells(frame.columns)
        while True:
            part = frame.head(shown["rows"])
            shown["index"] = cells(part.index)
            shown["data"] = [cells(row) for row in part.itertuples(index=False, name=None)]
            if shown["rows"] == 0 or len(json.dumps(shown)) <= self.MAX_TABLE:
                return shown
            shown["rows"] //= 2

    def cell(self, value, pandas, depth):
        # Missing values are null, and times are their ISO text: `dtypes` has the type.
        import datetime
        if value is pandas.NaT or value is getattr(pandas, "NA", None) or isinstance(value, float) and value != value:
            return None
        if isinstance(value, (datetime.date, datetime.time, pandas.Timedelta)):
            return value.isoformat()
        if isinstance(value, tuple):
            return [self.cell(item, pandas, depth) for item in value]
        return str(value) if isinstance(value, pandas.Period) else self.plain(value, depth + 1)
