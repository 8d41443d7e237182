"""Models of other projects, imported and exported.

What cannot be read or written exactly is a UserError(CHECKPOINT) that names the file with the field
or tensor.
"""
