"""Content with one thing wrong, time after time."""

WRONG = (None, "text", -1e9, True, [], {}, [[]])


def spoilt(content):
    """The content with one thing at a time deleted or replaced, but for long lists."""
    for key in list(content) if isinstance(content, dict) else range(min(1, len(content))):
        plain = content[key]
        for wrong in WRONG:
            content[key] = wrong
            yield key
        if isinstance(content, dict):
            del content[key]
            yield key
        content[key] = plain
        if isinstance(plain, dict | list):
            for inner in spoilt(plain):
                yield f"{key}.{inner}"
