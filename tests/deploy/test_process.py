"""The state folder: one that is made here is its user's alone, one that was there is left as it is."""

import stat
from pathlib import Path

import pytest

from fedgs.deploy.process import claim
from fedgs.errors import ConfigError, OutputError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_its_users_alone_and_one_process_s(tmp_path: Path) -> None:
    with claim(tmp_path / "state", "station"):
        assert mode(tmp_path / "state") == 0o700
        with pytest.raises(OutputError, match="another station is running"), claim(tmp_path / "state", "station"):
            pass
    with claim(tmp_path / "state", "station"):
        pass


@pytest.mark.parametrize("permissions", [0o755, 0o710, 0o701])
def test_a_folder_that_others_can_enter_is_refused_and_not_changed(tmp_path: Path, permissions: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(permissions)
    with pytest.raises(ConfigError, match="can enter"), claim(shared, "station"):
        pass
    assert mode(shared) == permissions
    assert list(shared.iterdir()) == []
