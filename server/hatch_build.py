"""The build of a wheel: compiles the kernel and puts it in. An editable installation has none until `make kernel`.

`HATCH_BUILD_NO_HOOKS=true` builds a wheel without it, for any platform; it needs no C compiler and is slower.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelHook(BuildHookInterface[Any]):
    """Adds the compiled kernel, and with it the platform in the wheel's name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return
        sys.path.insert(0, self.root)
        from build_kernel import build_kernel, what_is_missing  # type: ignore[import-not-found]  # noqa: PLC0415  # by the line above

        if (missing := what_is_missing()) is not None:
            self.app.display_warning(f"The hot path is not compiled, for want of {missing}; it runs, only slower.")
            return
        folder = self._folder()
        build_kernel(folder)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"][str(folder)] = "plainsql_server/_kernel"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        shutil.rmtree(self._folder(), ignore_errors=True)

    def _folder(self) -> Path:
        return Path(self.directory) / "kernel"
