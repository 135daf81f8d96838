"""Request fields that the server knows and does not have, with the values that ask for nothing.

A field is accepted at such a value (clients send defaults) and refused by name at any other. Fields that only
say who is asking (`user`, `safety_identifier`, `prompt_cache_key`) are part of the request models: they never
change an answer.
"""

from __future__ import annotations

from paceline.arguments.foreign import Foreign

_OLD_TOOLS = "use tools and tool_choice, which came in its place."
_NO_STORE = "nothing is stored on this server."
_NO_BEAMS = "beam search does not go with speculative decoding; use n with temperature > 0."
_TEXT_ONLY = "this server reads and writes text only."

COMMON: dict[str, Foreign] = {
    "best_of": Foreign((None, 1), "answers are not ranked; ask for several with n."),
    "use_beam_search": Foreign((None, False), _NO_BEAMS),
    "length_penalty": Foreign((None, 1, 1.0), _NO_BEAMS),
    "early_stopping": Foreign((None, False), _NO_BEAMS),
    "logits_processors": Foreign((None, []), "code of the user inside the sampler is not supported."),
    "spaces_between_special_tokens": Foreign((None, True), "text is what the tokenizer makes of the tokens."),
    "guided_decoding_backend": Foreign((None, "auto", "xgrammar"), "xgrammar is the one backend."),
    "guided_whitespace_pattern": Foreign((None,), "use structured_outputs with disable_any_whitespace."),
    "truncate_prompt_tokens": Foreign((None,), "prompts are never cut silently."),
    "metadata": Foreign((None, {}), _NO_STORE),
}

CHAT: dict[str, Foreign] = COMMON | {
    "echo": Foreign((None, False), "it belongs to /v1/completions."),
    "store": Foreign((None, False), _NO_STORE),
    "functions": Foreign((None, []), _OLD_TOOLS),
    "function_call": Foreign((None, "none", "auto"), _OLD_TOOLS),
    "modalities": Foreign((None, ["text"]), _TEXT_ONLY),
    "audio": Foreign((None,), _TEXT_ONLY),
    "prediction": Foreign((None,), 'use --speculative-config \'{"method": "ngram"}\' for text that repeats.'),
    "reasoning_effort": Foreign((None,), "pass chat_template_kwargs if the model's template has such a switch."),
    "verbosity": Foreign((None, "medium"), "say in the prompt how long the answer should be."),
    "service_tier": Foreign((None, "auto", "default"), "there is one tier."),
    "web_search_options": Foreign((None,), "this server does not search."),
    "prompt_cache_retention": Foreign((None,), "the prefix cache keeps what fits."),
    "prompt_cache_options": Foreign((None, {}), "the prefix cache works by itself and promises no lifetime."),
    "moderation": Foreign((None,), "nothing is moderated on this server."),
    "chat_template": Foreign((None,), "the model's own template is used."),
    "documents": Foreign((None, []), "put the documents into the messages."),
}

RESPONSES: dict[str, Foreign] = {
    "store": Foreign((None, False), _NO_STORE),
    "previous_response_id": Foreign((None,), _NO_STORE + " Send the whole conversation as input."),
    "conversation": Foreign((None,), _NO_STORE + " Send the whole conversation as input."),
    "prompt": Foreign((None,), _NO_STORE),
    "background": Foreign((None, False), _NO_STORE),
    "background_options": Foreign((None, {}), _NO_STORE),
    "context_management": Foreign((None, []), "prompts are never cut silently."),
    "truncation": Foreign((None, "disabled"), "prompts are never cut silently."),
    "include": Foreign((None, []), "there is nothing more to include."),
    "top_logprobs": Foreign((None, 0), "log-probabilities come with /v1/chat/completions."),
    "reasoning": Foreign((None, {}), "pass chat_template_kwargs if the model's template has such a switch."),
    "max_tool_calls": Foreign((None,), "no tool is run on this server."),
    "service_tier": CHAT["service_tier"],
    "moderation": CHAT["moderation"],
    "prompt_cache_options": CHAT["prompt_cache_options"],
    "prompt_cache_retention": CHAT["prompt_cache_retention"],
    "image": Foreign((None,), _TEXT_ONLY),
    "access_programs": Foreign((None, []), "there is nothing of the kind on this server."),
}

TOKENIZE: dict[str, Foreign] = {
    "chat_template": Foreign((None,), "the model's own template is used."),
    "mm_processor_kwargs": Foreign((None, {}), _TEXT_ONLY),
}

COMPLETION: dict[str, Foreign] = COMMON | {
    "suffix": Foreign((None, ""), "the model writes behind the prompt only."),
}
