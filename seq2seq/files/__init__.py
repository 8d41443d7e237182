"""Files on a disk and in object storage: reading, atomic writing, locks."""
