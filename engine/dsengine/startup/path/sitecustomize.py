"""Start-up hook: make ``import deepspeed`` import dsengine in this process.

Python imports this module at start-up from PYTHONPATH, then the ``sitecustomize`` module that it
hides is run. Nothing of dsengine is imported until a program looks for deepspeed. Every Python 3
has to be able to run this file, also one without dsengine: it keeps to old syntax and built-in
modules.
"""

import os
import sys

_NAME = "deepspeed"
_REPLACEMENT = "dsengine.deepspeed.replacement"
_IS_REQUIRED = os.environ.get("DSENGINE") == "required"


class _Finder:
    """Resolves ``deepspeed`` with dsengine's finder, which it imports when first needed."""

    def __init__(self):
        self._finder = None
        self._failure = None
        """Why dsengine cannot be imported here."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] != _NAME:
            if _IS_REQUIRED and _is_foreign(sys.modules.get(_NAME)):
                _refuse(sys.modules[_NAME], "it was imported past dsengine's start-up hook")
            return None
        finder = self._replacement()
        if finder is not None:
            return finder.find_spec(fullname, path, target)
        return self._installed(fullname, path, target) if fullname == _NAME else None

    def find_distributions(self, *arguments):
        if self._finder is not None:  # it is on sys.meta_path itself
            return iter(())
        finder = self._replacement()
        return iter(()) if finder is None else finder.find_distributions(*arguments)

    def _replacement(self):
        """Return dsengine's finder; None if this Python has no dsengine."""
        if self._finder is None and self._failure is None:
            try:
                __import__(_REPLACEMENT)
            except ImportError as error:
                self._failure = error
            else:
                self._finder = sys.modules[_REPLACEMENT].replacing_finder()
        return self._finder

    def _installed(self, fullname, path, target):
        """Return the spec of the installed DeepSpeed, which reports that it is not replaced."""
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return _reporting(spec, self._failure)
        return None


def _reporting(spec, failure):
    spec.loader = _ReportingLoader(spec.loader, failure)
    return spec


class _ReportingLoader:
    """Loads the installed DeepSpeed with a warning, or exits if dsengine is required."""

    def __init__(self, loader, failure):
        self._loader = loader
        self._failure = failure

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def exec_module(self, module):
        why = f"dsengine cannot be imported by {sys.executable} ({self._failure})"
        if _IS_REQUIRED:
            _refuse(module, why)
        _print("warning", module, why)
        self._loader.exec_module(module)


def _is_foreign(module):
    """Return whether a module is neither dsengine nor its alias, which is being loaded."""
    if module is None or getattr(module, "__name__", None) == "dsengine":
        return False
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return type(loader).__module__ != "dsengine.deepspeed.importing"


def _refuse(module, why):
    _print("error", module, why + "; DSENGINE=required")
    raise SystemExit(1)


def _print(kind, module, why):
    file = getattr(module, "__file__", None)
    text = f"dsengine: {kind}: deepspeed is not replaced, but imported from {file}: {why}"
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    print(shown, file=sys.stderr, flush=True)


def _run_hidden():
    """Run the ``sitecustomize`` module that Python would have imported without this one."""
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    others = [path for path in sys.path if os.path.abspath(path) != here]  # noqa: PTH100
    spec = PathFinder.find_spec(__name__, others)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules[__name__] = module
        spec.loader.exec_module(module)


_finder = _Finder()
sys.meta_path.insert(0, _finder)
try:
    _run_hidden()
finally:
    sys.meta_path.remove(_finder)
    sys.meta_path.insert(0, _finder)
