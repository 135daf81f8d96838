"""ToolPlan: what the tools of one request come to with the served model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.errors import InvalidRequestError
from paceline.server.tools.fields import Tool, ToolChoice
from paceline.server.tools.formats import ToolFormat
from paceline.server.tools.parser import ToolParser
from paceline.structured.constraint import Constraint
from paceline.structured.tool_calls import Function, calls_in_text, calls_or_answer, only_calls

Choice = Literal["none", "auto", "required"] | ToolChoice
NO_TOOLS = (
    "this model's chat template has no tool calls, or writes them in a form that is not known here (known: Hermes and "
    "Qwen <tool_call>, Llama 3.1 JSON, Mistral [TOOL_CALLS])."
)


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """`constraint` is of the whole answer; None: it is free, or what else the request asks for."""

    form: ToolFormat
    tools: tuple[Tool, ...]
    constraint: Constraint | None
    is_forced: bool  # the answer begins with a call
    is_named: bool
    parallel: bool

    @property
    def opening(self) -> str:
        """What stands at the end of the prompt, so that the answer begins behind it."""
        return self.form.opening if self.is_forced else ""

    @property
    def shows_special_tokens(self) -> bool:
        """The text must show the special token that begins calls."""
        return bool(self.form.opening) and not self.is_forced

    def for_template(self) -> list[dict[str, Any]]:
        return [tool.for_template() for tool in self.tools]

    def parser(self, hidden: Collection[str]) -> ToolParser:
        names = {tool.function.name for tool in self.tools}
        hidden = hidden if self.shows_special_tokens else ()
        return ToolParser(
            self.form,
            names,
            parallel=self.parallel,
            begun=bool(self.opening),
            forced=self.is_forced,
            hidden=hidden,
        )

    def finish_reason(self, reason: str | None, num_calls: int) -> str | None:
        """As OpenAI has it: a named function is called with 'stop'."""
        return "tool_calls" if reason == "stop" and num_calls and not self.is_named else reason


def plan_tools(
    tools: Sequence[Tool] | None,
    choice: Choice | None,
    parallel: bool,
    answer: Constraint | None,
    form: ToolFormat | None,
) -> ToolPlan | None:
    """None where nothing can be called. `answer`: what the rest of the request says the answer must be.

    Raises InvalidRequestError.
    """
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequestError("tool_choice needs tools.", param="tool_choice")
        return None
    _check_names(tools)
    mode, callable_tools = _chosen(tools, choice)
    if mode == "none":
        return None
    if form is None:
        raise InvalidRequestError(f"tools cannot be used: {NO_TOOLS}", param="tools", code="unsupported_parameter")
    if mode == "auto":
        constraint = _of_auto(form, callable_tools, parallel, answer)
    elif answer is not None:
        raise InvalidRequestError(
            f"tool_choice asks for a call, and {answer.param} for another answer; give one.", param=answer.param
        )
    else:
        functions = [function for _, function in callable_tools]
        constraint = only_calls(form.shape, functions, parallel=parallel and mode == "required", param="tools")
    shown = tuple(tool for tool, _ in callable_tools) if isinstance(choice, ToolChoice) else tuple(tools)
    return ToolPlan(form, shown, constraint, mode != "auto", mode == "named", parallel and mode != "named")


def _of_auto(
    form: ToolFormat, tools: Sequence[tuple[Tool, Function]], parallel: bool, answer: Constraint | None
) -> Constraint | None:
    functions = [function for _, function in tools]
    strict = next((function for function in functions if function.strict), None)
    if form.opening and (answer is not None or strict is not None):
        param = answer.param if answer is not None else strict.param if strict is not None else "tools"
        raise InvalidRequestError(
            f"{param}: this model begins calls with a token that no grammar knows, so what it asks for cannot be "
            "enforced while calls are optional. Set tool_choice to 'none', 'required' or a function.",
            param=param,
        )
    if answer is not None:
        return calls_or_answer(form.shape, functions, answer, parallel=parallel)
    if strict is not None:
        return calls_in_text(form.shape, functions, parallel=parallel, param="tools")
    return None


def _check_names(tools: Sequence[Tool]) -> None:
    seen: set[str] = set()
    for place, tool in enumerate(tools):
        if tool.function.name in seen:
            raise InvalidRequestError(
                f"tools[{place}]: a second function is named '{tool.function.name}'.",
                param=f"tools[{place}].function.name",
            )
        seen.add(tool.function.name)


def _chosen(tools: Sequence[Tool], choice: Choice | None) -> tuple[str, list[tuple[Tool, Function]]]:
    """none, auto, required or named; and the tools that may be called."""
    functions = [
        (tool, Function(tool.function.name, tool.function.parameters, bool(tool.function.strict), param))
        for place, tool in enumerate(tools)
        for param in [f"tools[{place}].function.parameters"]
    ]
    if not isinstance(choice, ToolChoice):
        return choice or "auto", functions
    if choice.function is not None:
        return "named", _named(functions, [choice.function.name], "tool_choice.function.name")
    assert choice.allowed_tools is not None
    names = [tool.function.name for tool in choice.allowed_tools.tools]
    return choice.allowed_tools.mode, _named(functions, names, "tool_choice.allowed_tools.tools")


def _named(functions: Sequence[tuple[Tool, Function]], names: Sequence[str], param: str) -> list[tuple[Tool, Function]]:
    known = {function.name for _, function in functions}
    for name in names:
        if name not in known:
            raise InvalidRequestError(f"{param}: no function of tools is named '{name}'.", param=param)
    return [entry for entry in functions if entry[1].name in names]
