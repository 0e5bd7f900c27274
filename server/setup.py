"""Compiles the extension modules: every .pyx of the package. All else is in pyproject.toml.

The package works without them, more slowly. On a machine without a C compiler or Python's headers, the build says so,
compiles nothing and succeeds. `make extensions` compiles in a checkout what has changed.
"""

import os
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCES = Path("src")


def extension(source: Path) -> Extension:
    """The extension module that is made of a .pyx."""
    name = ".".join(source.relative_to(SOURCES).with_suffix("").parts)
    return Extension(
        name, [str(source)], depends=["setup.py"], extra_compile_args=["-O2", "-g0"], optional=True
    )  # fmt: skip


class BuildModules(build_ext):
    """Makes C of every .pyx and compiles it. Only a build gets here: an sdist or the metadata need no Cython."""

    def build_extensions(self) -> None:
        if not self._can_compile():
            self.warn(
                "NOT COMPILED: there is no C compiler here, or Python's headers are missing. PlainSQL works without "
                "its extension modules, more slowly. To compile them, install both (on Debian: apt install gcc "
                "libc6-dev python3-dev), and install PlainSQL again, with pip's option --no-cache-dir."
            )
            return
        from Cython.Build import cythonize  # noqa: PLC0415 - see above

        made = cythonize(  # type: ignore[no-untyped-call]  # Cython has no types
            self.extensions,
            # Where the modules find each other's declarations, which are followed as dependencies.
            include_path=[str(SOURCES)],
            # The generated C does not lie among the sources.
            build_dir="build/cython",
        )
        for module, generated in zip(self.extensions, made, strict=True):
            module.sources = generated.sources
        super().build_extensions()

    def _can_compile(self) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text("#include <Python.h>\n")
            try:
                self.compiler.compile([str(source)], output_dir=folder)
            except CompileError:
                return False
        return True


setup(
    ext_modules=[extension(source) for source in sorted(SOURCES.rglob("*.pyx"))],
    cmdclass={"build_ext": BuildModules},
    options={"build_ext": {"parallel": str(os.cpu_count() or 1)}},
)
