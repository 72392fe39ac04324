"""Succeeds if this Python can build and run the tests of the package."""

import ensurepip  # noqa: F401  Debian has it in a package of its own
import sys
import venv  # noqa: F401

sys.exit(sys.version_info < (3, 11))
