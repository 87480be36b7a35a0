"""The verb ``setup``: builds missing packages once and installs them."""
