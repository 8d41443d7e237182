"""Programs compiled for accelerators that the host does not have, and what they need there."""
