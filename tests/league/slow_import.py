"""A module on a file system that does not answer."""

import time

time.sleep(1e6)  # at: import
