"""What the readers of torch's and Flax's files of weights have in common."""

import ml_dtypes
import numpy as np

MOST_DIMENSIONS = 8
DTYPES = {  # by the names of safetensors
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8,
    "BOOL": np.bool_,
}  # fmt: skip


class Refused(ValueError):
    """Why a file is not read, as the end of a sentence that begins with its path."""
