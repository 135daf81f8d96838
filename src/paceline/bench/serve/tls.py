"""Whose certificates are trusted, for what is timed and for all other requests alike."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx

from paceline.errors import ConfigurationError


def tls_context(ca_file: Path | None = None, *, insecure: bool = False) -> ssl.SSLContext:
    """The system's authorities and certifi's, and those of SSL_CERT_FILE and SSL_CERT_DIR; with `ca_file` its own
    besides. `insecure`: any certificate. Raises ConfigurationError where `ca_file` holds none."""
    if insecure:
        return httpx.create_ssl_context(verify=False)
    context = httpx.create_ssl_context()
    context.load_default_certs()  # httpx takes certifi's alone; a company's own authority is among the system's
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except ssl.SSLError:  # an OSError too
            raise ConfigurationError(f"--ca-file '{ca_file}' holds no certificate in PEM form.") from None
        except OSError as error:
            raise ConfigurationError(f"--ca-file '{ca_file}' cannot be read: {error.strerror or error}.") from None
    return context


def failure_in_words(root: str, error: Exception) -> str | None:
    """Of a server that was not reached. None: it is not about TLS."""
    said = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in said:
        why = said.partition("certificate verify failed: ")[2].rpartition(" (_ssl.c")[0] or said
        return (
            f"The certificate of {root} is not trusted: {why}. Give the certificate that signed it with --ca-file, or "
            "take any with --insecure."
        )
    if "[SSL" in said:
        return f"{root} does not speak TLS as asked ({said}). Is its address http://…?"
    if isinstance(error, httpx.RemoteProtocolError) and root.startswith("http://"):
        return f"{root} answers, but not in HTTP ({said}). Is its address https://…?"
    return None
