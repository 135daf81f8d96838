"""Whose certificates are trusted, for what is timed and for all other requests alike."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import httpx

from paceline.errors import ConfigurationError


def tls_context(ca_file: Path | None = None, *, insecure: bool = False) -> ssl.SSLContext:
    """The system's authorities and certifi's, and those of SSL_CERT_FILE and SSL_CERT_DIR; with `ca_file` its own
    besides. `insecure`: any certificate. Raises ConfigurationError where `ca_file` or SSL_CERT_FILE holds none."""
    if insecure:
        return httpx.create_ssl_context(verify=False)
    context = httpx.create_ssl_context(trust_env=False)  # certifi's; else those of the environment take their place
    context.load_default_certs()  # a company's own authority is among the system's
    _load_shadowed(context)
    if of_environment := os.environ.get("SSL_CERT_FILE"):  # OpenSSL passes over one that it cannot read
        _load(context, of_environment, "SSL_CERT_FILE")
    if ca_file is not None:
        _load(context, str(ca_file), "--ca-file")
    return context


def _load(context: ssl.SSLContext, file: str, source: str) -> None:
    try:
        context.load_verify_locations(cafile=file)
    except ssl.SSLError:  # an OSError too
        raise ConfigurationError(f"{source} '{file}' holds no certificate in PEM form.") from None
    except OSError as error:
        raise ConfigurationError(f"{source} '{file}' cannot be read: {error.strerror or error}.") from None


def _load_shadowed(context: ssl.SSLContext) -> None:
    """The system's own places, which OpenSSL leaves out where the environment names others."""
    places = ssl.get_default_verify_paths()
    if os.environ.get(places.openssl_cafile_env) and os.path.isfile(places.openssl_cafile):
        context.load_verify_locations(cafile=places.openssl_cafile)
    if os.environ.get(places.openssl_capath_env) and os.path.isdir(places.openssl_capath):
        context.load_verify_locations(capath=places.openssl_capath)


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
