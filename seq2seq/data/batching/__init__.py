"""From token ids to packed batches: order, windows, packing, loss weights."""
