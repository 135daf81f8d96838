"""Structured output: an answer that follows a JSON schema, a regular expression, a choice or a grammar.

Read in this order:
  params.py        what a request may ask for -> one Constraint, or InvalidRequestError naming the field
  json_schema.py   the part of JSON Schema that is enforced; whatever would be ignored is refused
  regex.py         the same for regular expressions
  store.py         Constraint -> compiled grammar (xgrammar), cached by content
  sandbox.py       a process that tries a grammar first, within limits of time and memory
  service.py       both of these off the step path, for the engine
  masks.py         which tokens a row's grammar allows, at every place of a step

Nothing is imported here: xgrammar loads torch, and is loaded when the first constraint is compiled.
"""
