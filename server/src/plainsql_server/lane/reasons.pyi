NAMES: tuple[str, ...]

class Reasons:
    def by_name(self) -> dict[str, int]: ...
