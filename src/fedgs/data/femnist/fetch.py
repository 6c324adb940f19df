"""Get FEMNIST: download NIST's two archives where they are not there yet, convert them, put the set into the cache.

Whatever public layout already lies in the folder is taken as it is, without network. No download is ever thrown
away: it grows in ``<name>.part`` and goes on where it broke off.
"""

from pathlib import Path
from typing import Unpack

from fedgs.data import cache
from fedgs.data.download import download
from fedgs.data.femnist import NAME, Conversion, FemnistOptions, convert_femnist, fitting_layouts, remember
from fedgs.errors import DownloadError, OutputError

SOURCE = "https://s3.amazonaws.com/nist-srd/SD19/"
# NIST publishes no checksums for these two. A zip carries the CRC of every member, which the conversion checks;
# the length is checked against what the server announces.
ARCHIVES = ("by_class.zip", "by_write.zip")


def default_folder() -> Path:
    """Return where downloads go when no folder is named."""
    return cache.cache_dir() / "downloads" / NAME


def fetch_femnist(folder: Path | None = None, *, url: str = SOURCE, **options: Unpack[FemnistOptions]) -> Conversion:
    """Download what is missing in ``folder``, convert it, and store it in the cache as ``femnist``."""
    folder = folder or default_folder()
    layout = options.get("layout")
    found = fitting_layouts(folder) if folder.is_dir() else []
    # NIST's is the one layout that can be downloaded.
    if (layout is None and not found) or (layout == "nist" and layout not in found):
        _download(folder, url, options.get("progress", False))
    done = convert_femnist(folder, **options)
    remember(done, folder)
    return done


def _download(folder: Path, url: str, progress: bool) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made ({error.strerror}); --dir names another folder") from None
    base = url.rstrip("/") + "/"
    for name in ARCHIVES:
        if (folder / name).exists():
            continue
        try:
            download(base + name, folder / name, progress=progress)
        except DownloadError as error:
            wanted = " and ".join(base + missing for missing in ARCHIVES if not (folder / missing).exists())
            raise DownloadError(
                f"{error}; run this again to go on, or download {wanted} by hand into {folder} and run it again"
            ) from None
