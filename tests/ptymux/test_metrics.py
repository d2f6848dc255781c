"""metrics.py: Prometheus text from what `stats` answers."""

from __future__ import annotations

import re

from ptymux import metrics

STATS = {
    "sessions": 3,
    "sessions_running": 2,
    "bytes_out": 123456789012,
    "loop_delay": 0.00025,
    "something_new": 7,
    "history": [
        {"session": "ab12", "stream": "stdout", "used": 4096},
        {"session": "ab12", "stream": "stderr", "used": 0},
    ],
    "lag": [{"session": "ab12", "client": "c1", "channel": 0, "lag": 17}],
}

LINE = re.compile(r'guestagent_[a-z_]+(\{([a-z]+="[^"\\\n]*",?)+\})? -?[0-9.e+-]+')


def test_every_number_that_is_known_is_told_once_with_its_type() -> None:
    text = metrics.prometheus(STATS)
    assert text.endswith("\n")
    lines = text.splitlines()
    assert "guestagent_sessions 3" in lines
    assert "guestagent_bytes_out 123456789012" in lines
    assert "guestagent_loop_delay 0.00025" in lines
    assert 'guestagent_history_used_bytes{session="ab12",stream="stderr"} 0' in lines
    assert 'guestagent_lag_bytes{session="ab12",client="c1",channel="0"} 17' in lines
    assert "something_new" not in text, "a metric without a type and a help text is none"


def test_the_form_is_that_of_the_exposition_format() -> None:
    """HELP, then TYPE, then the samples of that name; each name in one place."""
    lines = metrics.prometheus(STATS).splitlines()
    name = ""
    seen: set[str] = set()
    for i, line in enumerate(lines):
        if line.startswith("# HELP "):
            name = line.split()[2]
            assert name not in seen
            seen.add(name)
            assert len(line.split(maxsplit=3)) == 4
            assert re.fullmatch(rf"# TYPE {name} (counter|gauge)", lines[i + 1])
        elif not line.startswith("#"):
            assert LINE.fullmatch(line), line
            assert re.split(r"[{ ]", line)[0] == name


def test_nothing_is_made_up_for_what_is_missing() -> None:
    """An older agent may count less."""
    lines = metrics.prometheus({}).splitlines()
    assert all(line.startswith("#") for line in lines)


def test_whole_numbers_stay_whole() -> None:
    """:g would make 1.23457e+11 of it."""
    assert "guestagent_bytes_out 123456789012\n" in metrics.prometheus({"bytes_out": 123456789012})
