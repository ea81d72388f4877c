"""What the tests of the scheduler need of the machine."""

from __future__ import annotations

import importlib.util

#: Libraries of file formats are no dependencies of ours: their test runs where somebody has them.
_FORMATS = "h5py", "h5netcdf", "netCDF4"
collect_ignore = [] if all(map(importlib.util.find_spec, _FORMATS)) else ["test_io_formats.py"]
