"""Compiles the extension modules: every .pyx of the package. All else is in pyproject.toml.

On a machine without a C compiler or Python's headers, a warning names each module that is left out, and the package
works without them. `make extensions` compiles in a checkout what has changed.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCES = Path("src")


def extension(source: Path) -> Extension:
    """The extension module that is made of a .pyx."""
    name = ".".join(source.relative_to(SOURCES).with_suffix("").parts)
    return Extension(name, [str(source)], depends=["setup.py"], extra_compile_args=["-O2", "-g0"])


modules: list[Extension] = cythonize(  # type: ignore[no-untyped-call]  # Cython has no types
    [extension(source) for source in sorted(SOURCES.rglob("*.pyx"))],
    # Where the modules find each other's declarations, which are followed as dependencies.
    include_path=[str(SOURCES)],
    # The generated C does not lie among the sources.
    build_dir="build/cython",
)
for module in modules:
    # Not above, because cythonize does not hand it on.
    module.optional = True

setup(ext_modules=modules, options={"build_ext": {"parallel": str(os.cpu_count() or 1)}})
