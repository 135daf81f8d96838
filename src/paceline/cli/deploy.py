"""paceline deploy: values, render, check, doctor. What they take and how they speak; the work is in paceline.deploy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from paceline.cli.finite import App

if TYPE_CHECKING:
    from paceline.deploy.check import Report
    from paceline.deploy.doctor import Finding

deploy_app = App(no_args_is_help=True, help="Kubernetes and KServe: manifests, their checks, a doctor for pods.")

Platform = Literal["kubernetes", "kserve", "kserve-llm"]
Runtime = Literal["paceline", "vllm"]


def _option(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, show_default=False)


@deploy_app.command("values")
def show_values(
    preset: Annotated[str | None, typer.Argument(help="Without it: the names there are.", show_default=False)] = None,
    runtime: Annotated[Runtime, _option("paceline or vllm. Default paceline.")] = "paceline",
) -> None:
    """Print a preset's values, to start a file of your own from.

    [bold]Example[/bold]

      paceline deploy values llama-70b-4xh100 > values.yaml
    """
    from paceline.deploy.presets import preset_names, preset_text, preset_values
    from paceline.deploy.write import as_yaml

    if preset is None:
        typer.echo("\n".join(preset_names()))
        return
    text = preset_text(preset, runtime)
    typer.echo(as_yaml(preset_values(preset, runtime)) if "\n---\n" in text else text, nl=False)


@deploy_app.command()
def render(
    values: Annotated[
        Path | None, typer.Argument(help="A file of values, laid over --preset.", show_default=False)
    ] = None,
    platform: Annotated[Platform, _option("kubernetes, kserve or kserve-llm. Default kubernetes.")] = "kubernetes",
    runtime: Annotated[Runtime, _option("paceline or vllm. Default paceline.")] = "paceline",
    preset: Annotated[str | None, _option("Values to start from; `paceline deploy values` lists them.")] = None,
    image: Annotated[str | None, _option("The image of Paceline, instead of the values'.")] = None,
    name: Annotated[str | None, _option("Of the deployment, instead of the values'.")] = None,
    namespace: Annotated[str | None, _option("Instead of the values'.", "--namespace", "-n")] = None,
    out: Annotated[
        str | None, _option("Folder for one file a manifest; without it, all go to standard output.")
    ] = None,
) -> None:
    """Manifests from one file of values: plain YAML in a stable order, for kubectl, kustomize or a pull request.

    Wrong values are one message that lists every problem, and no file is written.

    [bold]Examples[/bold]

      paceline deploy render --preset smoke-cpu --image registry.example.com/paceline:0.1.0-cpu --out manifests

      paceline deploy render values.yaml --platform kserve --out manifests

      paceline deploy render values.yaml --platform kserve-llm --runtime vllm > manifests.yaml
    """
    import shlex

    from paceline.cli.console import say, show_notes
    from paceline.deploy.folder import write_files
    from paceline.deploy.render import render as render_values
    from paceline.deploy.values_file import load_values
    from paceline.deploy.write import as_stream
    from paceline.errors import ConfigurationError

    if out is not None and not out.strip():
        raise ConfigurationError("--out is empty: give a folder, or leave it out for standard output.")
    given = {"image": image, "name": name, "namespace": namespace}
    overrides = {key: value for key, value in given.items() if value is not None}
    rendered = render_values(load_values(values, runtime, preset, overrides), platform, runtime)
    show_notes(rendered.notes)
    if out is None:
        typer.echo(as_stream(rendered), nl=False)
        return
    written = write_files(rendered, Path(out))
    show_notes(written.notes)
    folder = shlex.quote(out)
    say(f"Wrote {len(written.files)} files to {out}. Check them with: paceline deploy check {folder}")
    say(f"Then: kubectl apply -k {folder}")


@deploy_app.command()
def check(
    files: Annotated[
        list[Path], typer.Argument(help="Manifests, YAML or JSON: files, folders, or - (standard input).")
    ],
    crds: Annotated[Path | None, _option("CRDs to check custom resources against: a file or a folder.")] = None,
    kubernetes_version: Annotated[str, _option("Of the built-in kinds' schemas. Default 1.36.")] = "1.36",
    previous: Annotated[
        Path | None, _option("What is applied now: also report what cannot be changed in place.")
    ] = None,
    server: Annotated[bool, _option("Also ask the cluster: kubectl's dry run, with webhooks.", "--server")] = False,
    context: Annotated[str | None, _option("kubectl's context, with --server.")] = None,
    strict: Annotated[bool, _option("Warnings fail as well.", "--strict")] = False,
) -> None:
    """Check manifests strictly and offline; any, not only rendered ones.

    Exit status: 0 nothing wrong, 1 something is, 2 could not check.

    [bold]Examples[/bold]

      paceline deploy check manifests

      kubectl kustomize production | paceline deploy check -

      kubectl get crd -o yaml > crds.yaml && paceline deploy check manifests --crds crds.yaml

      paceline deploy check manifests --server
    """
    from paceline.cli.console import show_notes
    from paceline.deploy.check import check_files
    from paceline.deploy.check.server import server_dry_run
    from paceline.errors import ConfigurationError

    if context is not None and not server:
        raise ConfigurationError("--context is kubectl's, and asks for --server.")
    if server and Path("-") in files:
        raise ConfigurationError("--server has kubectl read the files itself: give files or folders, not -.")
    if files.count(Path("-")) > 1:
        raise ConfigurationError("- is given twice, and standard input can be read once.")
    report = check_files(files, kubernetes_version=kubernetes_version, crds=crds, previous=previous)
    refused = server_dry_run(files, context, hidden=report.hidden) if server else []
    show_notes(report.notes)
    _show_report(report, refused)
    wrong = report.count("error") + len(refused) + (report.count("warning") if strict else 0)
    raise typer.Exit(1 if wrong else 0)


@deploy_app.command()
def doctor(
    model: Annotated[list[str] | None, _option("A model directory. May be repeated.")] = None,
    runtime: Annotated[Runtime, _option("What serves them: paceline or vllm. Default paceline.")] = "paceline",
    gpus: Annotated[int | None, typer.Option(help="How many there must be.", show_default=False, min=0)] = None,
    port: Annotated[str, _option("The server's port, or none if it runs already. Default 8000.")] = "8000",
    host: Annotated[str, _option("The address it listens on. Default 0.0.0.0.")] = "0.0.0.0",
    only: Annotated[
        list[str] | None, _option("gpu, shm, permissions, model, port, environment. May be repeated.")
    ] = None,
    wait: Annotated[
        int, typer.Option(help="Seconds to wait until nothing is wrong, for an init container.", min=0)
    ] = 0,
    as_json: Annotated[bool, _option("Print one JSON document.", "--json")] = False,
) -> None:
    """Say what would keep a server from starting here: GPUs, /dev/shm, permissions, models, port.

    Exit status: 0 nothing wrong (warnings may be), 1 something is, 2 could not look.

    [bold]Examples[/bold]

      paceline deploy doctor --model /mnt/models --gpus 4

      kubectl exec POD -- paceline deploy doctor --port none
    """
    from paceline.deploy.doctor import CHECKS, System, Wanted
    from paceline.errors import ConfigurationError, did_you_mean

    for name in only or []:
        if name not in CHECKS:
            raise ConfigurationError(f"--only {name}: no such check.{did_you_mean(name, CHECKS)} There are: "
                                     f"{', '.join(CHECKS)}.")  # fmt: skip
    if port != "none" and not (port.isascii() and port.isdigit() and 0 <= int(port) < 65536):
        raise ConfigurationError(f"--port {port}: give a number up to 65535, or none.")
    if "" in (model or ()):
        raise ConfigurationError("--model is empty: give the model's directory.")
    models = tuple(Path(each) for each in model or ())
    number = None if port == "none" else int(port)
    wanted = Wanted(models=models, runtime=runtime, num_gpus=gpus, port=number, host=host)
    if only and "model" in only and not model:
        raise ConfigurationError("--only model needs a --model to look at.")
    findings = _wait(wanted, System(), tuple(only or ()), wait)
    _show_findings(findings, as_json)
    raise typer.Exit(1 if any(finding.level == "error" for finding in findings) else 0)


def _wait(wanted: Any, system: Any, only: tuple[str, ...], seconds: int) -> list[Finding]:
    """Look again every few seconds while something is wrong; say what is waited for once a minute."""
    import time

    from paceline.cli.console import say
    from paceline.deploy.doctor import diagnose

    start, said = time.monotonic(), float("-inf")
    while True:
        findings = diagnose(wanted, system, only)
        wrong = [finding for finding in findings if finding.level == "error"]
        now = time.monotonic()
        if not wrong or now - start >= seconds:
            return findings
        if now - said >= 60:
            say(f"Waiting, {now - start:.0f} of {seconds} s: {wrong[0].message}")
            said = now
        time.sleep(min(5.0, seconds - (now - start)))


def _show_report(report: Report, refused: list[str]) -> None:
    from rich.markup import escape

    from paceline.cli.console import make_console

    console = make_console()
    for document, finding in report.findings:
        colour = "red" if finding.level == "error" else "yellow"
        console.print(
            f"[{colour}]{finding.level}[/] {escape(document.label)}: {escape(finding.path)}: {escape(finding.message)}",
            soft_wrap=True,
        )
    for line in refused:
        console.print(f"[red]error[/] cluster: {escape(line)}", soft_wrap=True)
    errors, warnings = report.count("error") + len(refused), report.count("warning")
    console.print(f"{report.num_documents} objects: {errors} errors, {warnings} warnings.")


def _show_findings(findings: list[Finding], as_json: bool) -> None:
    import json
    from dataclasses import asdict

    from rich.markup import escape

    from paceline.cli.console import make_console

    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings]))
        return
    console = make_console()
    colours = {"ok": "green", "warning": "yellow", "error": "red"}
    for finding in findings:
        console.print(
            f"[{colours[finding.level]}]{finding.level:7}[/] {finding.check}: {escape(finding.message)}", soft_wrap=True
        )
        if finding.action:
            console.print(f"        {escape(finding.action)}", soft_wrap=True)
