"""The order of an epoch, computed and not stored: slot of the epoch → pair of the corpus.

Slots 0, 1, 2, … of an epoch are a permutation of the pairs that the epoch takes. Any slot is
computed on its own, so a window of slots costs the same at every place, for any size of the corpus.

The permutation is a Feistel network on the smallest even number of bits that can hold the size.
Values beyond the size are mapped again until they are inside (cycle walking; Black and Rogaway
2002, section 4), which keeps it a bijection.
"""

import numpy as np
from jaxtyping import Int, Int64, UInt64

from seq2seq.data.tokens.training_pairs import Part

ROUNDS = 8  # of the Feistel network; 4 suffice for a pseudorandom permutation (Luby, Rackoff 1988)
EPOCH, PASS, ROWS = range(3)  # the last part of a key: permutations of different things differ


class Permutation:
    """A pseudorandom permutation of 0, …, size − 1 that is determined by `key`.

    Those of np.random.Generator may change between versions of NumPy; the hash of a SeedSequence
    does not.
    """

    def __init__(self, size: int, key: tuple[int, ...]):
        self._size = size
        self._half = max(1, (max(1, size - 1).bit_length() + 1) // 2)  # bits of each half
        self._keys = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64)

    def __call__(self, places: Int[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The images of `places`, as int64. ValueError for a place outside of the permutation."""
        places = np.asarray(places)
        if len(places) and not (0 <= places.min() and places.max() < self._size):
            raise ValueError(f"places must be from 0 to {self._size - 1}")
        images = self._network(places.astype(np.uint64))
        while len(outside := np.flatnonzero(images >= self._size)):
            images[outside] = self._network(images[outside])
        return images.astype(np.int64)

    def _network(self, values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
        """The Feistel network: a bijection of the values of 2 × `half` bits."""
        half, mask = np.uint64(self._half), np.uint64((1 << self._half) - 1)
        left, right = values >> half, values & mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        return left << half | right


def _mix(values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """The finalizer of SplitMix64, in which every input bit affects every output bit."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)


class EpochOrder:
    """The order of one epoch of a mixture; `order(slots)` are indices of pairs.

    The epochs read each part as one endless stream of passes, each pass in a random order of its
    own, so no pair is taken again before all others of its part have been taken.

    Example: a part of 3 pairs with weight 0.5. Before epochs 0, 1, 2, 3 its stream is at
    floor(1.5 · epoch) = 0, 1, 3, 4. If the orders of its passes are [2 0 1] and [1 2 0], epoch 0
    takes pair 2, epoch 1 pairs 0 and 1, and epoch 2 pair 1 of the second pass.
    """

    def __init__(self, parts: tuple[Part, ...], seed: int, epoch: int):
        self._parts, self._seed = parts, seed
        before = [part.taken_before(epoch) for part in parts]  # in the stream of each part
        after = [part.taken_before(epoch + 1) for part in parts]
        taken = [stop - start for start, stop in zip(before, after, strict=True)]
        self._before, self._starts = before, np.cumsum([0, *taken])  # of each part in the epoch
        self._first_pairs = np.cumsum([0, *(part.num_pairs for part in parts)])
        self.num_pairs = int(self._starts[-1])  # that the epoch takes, repeated ones included
        self._order = Permutation(self.num_pairs, (seed, epoch, EPOCH))

    def __call__(self, slots: Int[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The pairs in these slots."""
        places = self._order(slots)
        part_of = np.searchsorted(self._starts, places, side="right") - 1
        pairs = np.empty(len(places), np.int64)
        for number, part in enumerate(self._parts):
            of_part = np.flatnonzero(part_of == number)
            stream = places[of_part] - self._starts[number] + self._before[number]
            pass_of, place = np.divmod(stream, part.num_pairs)
            for pass_number in np.unique(pass_of).tolist():
                chosen = pass_of == pass_number
                order = Permutation(part.num_pairs, (self._seed, pass_number, number, PASS))
                pairs[of_part[chosen]] = self._first_pairs[number] + order(place[chosen])
        return pairs
