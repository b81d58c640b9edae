# The figures and pictures of Python code that become files of the workspace. Text of the drivers for Python, which
# compile it: that of a session at its start, the other one only where it is needed.
class Display:
    # How many figures of one run or cell become files.
    MAX_FIGURES = 100

    def __init__(self, workspace, note):
        self.workspace, self.note = workspace, note
        self.begin("figure", "value")

    def begin(self, figures, values):
        # How the names of the files begin.
        self.figures, self.values, self.count = figures, values, 0

    @staticmethod
    def short(text, most):
        return text if len(text) <= most else text[:most] + "…"

    # Files

    def keep(self, stem, extension, data):
        # A new file in the workspace: nothing of the code's is overwritten.
        import os
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        for number in range(1000):
            name = stem + ("-%d" % number if number else "") + extension
            try:
                descriptor = os.open(self.workspace + "/" + name, flags, 0o644)
            except FileExistsError:
                continue
            with open(descriptor, "wb") as file:
                file.write(data)
            return

    def keep_shown(self, value):
        # What a value of a class shows of itself.
        import sys
        kind = type(value)
        pandas = sys.modules.get("pandas")
        if kind.__module__ == "builtins" or pandas is not None and isinstance(value, (pandas.DataFrame, pandas.Series)):
            return
        for method, extension in (("_repr_png_", ".png"), ("_repr_svg_", ".svg"), ("_repr_html_", ".html")):
            if not callable(getattr(kind, method, None)):
                continue
            try:
                data = getattr(value, method)()
                data = data[0] if isinstance(data, tuple) else data
                if isinstance(data, str):
                    data = data.encode("utf-8", "replace")
                if isinstance(data, bytes):
                    self.keep(self.values, extension, data)
            except Exception as error:
                self.note("%s failed: %s" % (method, self.short(repr(error), 300)))

    def keep_figures(self):
        # Saves and closes the open figures, but those that the code has saved itself.
        import io, sys
        pyplot = sys.modules.get("matplotlib.pyplot")
        if not hasattr(pyplot, "get_fignums"):
            return
        for number in pyplot.get_fignums():
            try:
                figure = pyplot.figure(number)
                if getattr(figure, "_is_saved", False):
                    continue
                self.count += 1
                if self.count > self.MAX_FIGURES:
                    self.note("more than %d figures: the others were not saved" % self.MAX_FIGURES)
                    break
                target = io.BytesIO()
                figure.savefig(target, format="png", bbox_inches="tight")
                self.keep("%s-%d" % (self.figures, self.count), ".png", target.getvalue())
            except Exception as error:
                self.note("a figure was not saved: %s" % self.short(repr(error), 300))
        pyplot.close("all")

    # Errors

    @staticmethod
    def peer(error):
        # Where a connection should have led: the messages of Python do not say it.
        for _ in range(50):
            if error is None:
                return None
            trace = error.__traceback__ if isinstance(error, OSError) else None
            while trace is not None:
                code, names = trace.tb_frame.f_code, trace.tb_frame.f_locals
                if code.co_name in ("create_connection", "getaddrinfo") and code.co_filename.endswith("socket.py"):
                    host, port = names["address"] if "address" in names else (names.get("host"), names.get("port"))
                    if isinstance(host, str):
                        return "%s:%s" % (host, port) if isinstance(port, int) else host
                trace = trace.tb_next
            error = error.__cause__ or error.__context__

    # matplotlib

    def attach(self, pyplot):
        # `show` saves what a window would show, and figures remember that the code saved them.
        from matplotlib.figure import Figure
        plain = getattr(Figure.savefig, "plain", Figure.savefig)

        def savefig(figure, *arguments, **options):
            result = plain(figure, *arguments, **options)
            figure._is_saved = True
            return result

        savefig.plain, savefig.__doc__ = plain, plain.__doc__
        Figure.savefig = savefig
        pyplot.show = lambda *arguments, **options: self.keep_figures()

    def find_spec(self, name, path=None, target=None):
        # Finds the module as it would be found without this object, and attaches to it once it is loaded.
        if name != "matplotlib.pyplot":
            return None
        import sys
        from importlib.util import find_spec
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        spec = find_spec(name)
        load = getattr(getattr(spec, "loader", None), "exec_module", None)
        if load is None:
            return spec

        def exec_module(module):
            load(module)
            self.attach(module)

        spec.loader.exec_module = exec_module
        return spec
