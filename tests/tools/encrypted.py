"""Keys for clusters that talk encrypted only, made by OpenSSL."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from distributed.security import Security


def keys(folder: Path) -> Security:
    """Key and certificate in a folder, for scheduler, workers and clients alike."""
    return Security(**fields(folder))


def fields(folder: Path) -> dict[str, Any]:
    """What their `Security` is made of."""
    key, certificate = str(folder / "key.pem"), str(folder / "certificate.pem")
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split()
    subprocess.run([*request, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    parts = (("key", key), ("cert", certificate))
    roles = ("scheduler", "worker", "client")
    files = {f"tls_{role}_{kind}": path for role in roles for kind, path in parts}
    return {"require_encryption": True, "tls_ca_file": certificate, **files}
