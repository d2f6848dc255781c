"""Settings and fixtures for all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# No deadline: the machines are noisy, and a slow example is no failure.  CI repeats the same examples every time, so that a red
# build is the change's fault; a found one is printed as a blob to paste into @reproduce_failure.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")

# A script's background is started with Ctrl-C ignored, and its children inherit that: asyncio would then not hear of it.
signal.signal(signal.SIGINT, signal.default_int_handler)
