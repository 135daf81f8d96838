"""cache_salt: cached prefixes are found by requests of the same salt, and by no others; the text is the same."""

from __future__ import annotations

from engine.tagged import TaggedExecutor, make_engine, reference, request, run, tokens


def test_prefixes_are_shared_within_a_salt_alone() -> None:
    engine = make_engine(TaggedExecutor())
    prompt = list(range(30))
    cached = []
    for number, salt in enumerate(("", "a", "b", "a", "", "b")):
        made = request(str(number), prompt, max_tokens=6)
        made.cache_salt = salt
        engine.add_request(made)
        results = run(engine)[f"{number}/0"]
        assert tokens(results) == reference(prompt, 6)
        cached.append(results[-1].num_cached_tokens)
    assert cached == [0, 0, 0, 28, 28, 28]
