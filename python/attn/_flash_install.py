# SPDX-License-Identifier: Apache-2.0
"""attn.flash_attn.install(): `import flash_attn` and its metadata, as programs look for them.

A finder on sys.meta_path answers for the modules (find_spec) and for the distributions flash-attn
and flash-attn-3 (find_distributions), which transformers asks for before it imports them.

Invariant: after uninstall() nothing of it is left in sys.meta_path and sys.modules.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types
from typing import Any, Dict, Iterator, Optional, Tuple

VERSION = "2.8.4"  # the version of flash-attn whose functions these are
# Each module: where its exports come from, and whether it is a package.
_MODULES: Dict[str, Tuple[str, bool]] = {
    "flash_attn": ("attn.flash_attn", True),
    "flash_attn.flash_attn_interface": ("attn.flash_attn", False),
    "flash_attn.bert_padding": ("attn._flash_padding", False),
    "flash_attn_interface": ("attn.flash_attn_interface", False),
}
_DISTRIBUTIONS = {"flash-attn": ("flash_attn", VERSION),
                  "flash-attn-3": ("flash_attn_interface", "3.0.0")}


class _Distribution(importlib.metadata.Distribution):
    def __init__(self, name: str, module: str, version: str) -> None:
        self._text = {"top_level.txt": f"{module}\n",
                      "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}

    def read_text(self, filename: str) -> Optional[str]:
        return self._text.get(filename)

    def locate_file(self, path: Any) -> Any:
        return importlib.metadata.PackagePath(path)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in _MODULES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=_MODULES[fullname][0],
                                              is_package=_MODULES[fullname][1])

    def find_distributions(self, context: Any = None) -> Iterator[_Distribution]:
        name = getattr(context, "name", None)
        for known, (module, version) in _DISTRIBUTIONS.items():
            if name is None or name.lower().replace("_", "-") == known:
                yield _Distribution(known, module, version)

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        source = importlib.import_module(_MODULES[module.__name__][0])
        module.__doc__, module.__version__ = source.__doc__, VERSION
        for name in source.__all__:
            setattr(module, name, getattr(source, name))


_finder = _Finder()


def _forget() -> None:
    """Drops modules that were imported before, and the answers that transformers has cached."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("flash_attn", "flash_attn_interface"):
            del sys.modules[name]
    found = sys.modules.get("transformers.utils.import_utils")
    if found is None:
        return
    known = getattr(found, "PACKAGE_DISTRIBUTION_MAPPING", None)
    if known is not None:
        now = importlib.metadata.packages_distributions()
        for module, _ in _DISTRIBUTIONS.values():
            known.pop(module, None)
            known.update({module: now[module]} if module in now else {})
    for name, function in vars(found).items():
        if name.startswith("is_flash_attn") and hasattr(function, "cache_clear"):
            function.cache_clear()


def install() -> None:
    """From now on `import flash_attn`, flash_attn.flash_attn_interface, flash_attn.bert_padding and
    flash_attn_interface (FlashAttention-3) give libattn's functions, also where these packages are
    installed. What was imported from them before stays as it is.

    transformers then takes attn_implementation="flash_attention_2" (or 3) where it sees a CUDA
    device; attn.transformers needs none.

    >>> import attn.flash_attn
    >>> attn.flash_attn.install()
    >>> from flash_attn import flash_attn_func
    >>> flash_attn_func is attn.flash_attn.flash_attn_func
    True
    >>> attn.flash_attn.uninstall()
    """
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
        _forget()


def uninstall() -> None:
    """Undoes install()."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        _forget()
