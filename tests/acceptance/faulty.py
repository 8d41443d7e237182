"""train.py with one fault: python faulty.py FAULT ARGUMENT… -- FLAGS of train.py.

    signal POINT N NAME   before call N of an injection point, send SIGNAME to this process; several
                          names are sent one after the other
    limit POINT N         from call N of an injection point on, limit files to 4,000 bytes
    poison WORD           the loss of a batch with this word in a source is NaN
    spoil N               the state passed to save N contains one NaN
    reseed                the dropout key of the run differs in each process
    watch                 print the hash of each batch, and at each save whether replicas are equal
    hurry                 requests to object storage are tried again without pauses

injection.py lists the injection points.
"""

import hashlib
import os
import resource
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from seq2seq import train  # noqa: E402
from seq2seq.cli.command import run_command  # noqa: E402
from tests.acceptance.injection import replace  # noqa: E402


def at_call(point, call, action):
    """Run `action` before call number `call` (from 1) of an injection point."""
    calls = []

    def around(original):
        def counted(*args, **options):
            calls.append(1)
            if len(calls) == int(call):
                action()
            return original(*args, **options)

        return counted

    replace(point, around)


def send(point, call, names):
    def kill():
        print(f"now {names} at {point}", file=sys.stderr, flush=True)
        first, *others = (getattr(signal, f"SIG{name}") for name in names.split())
        os.kill(os.getpid(), first)
        time.sleep(0.1)
        for number in others:  # each ends the process, which is inside this call
            time.sleep(1)  # in a thread: two pending signals of a kind would be one
            os.kill(os.getpid(), number)
            time.sleep(30)

    at_call(point, call, kill)


def limit(point, call):
    size = 4_000, resource.RLIM_INFINITY
    at_call(point, call, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, size))


def poison(word):
    ids = []

    def learn(original):
        def prepare(*args):
            config, data = original(*args)
            ids.extend(data.tokenizers[0].encode(word))
            return config, data

        return prepare

    def spoil(original):
        def sums(model, params, batch, *rest):
            loss_sums = original(model, params, batch, *rest)
            return loss_sums._replace(
                loss=jnp.where((batch.source == ids[0]).any(), jnp.nan, 1.0) * loss_sums.loss
            )

        return sums

    replace("data", learn)
    replace("loss", spoil)


def spoil(number):
    saves = []

    def around(original):
        def save(self, state, data):
            saves.append(1)
            if len(saves) == int(number):
                table = state.params["target_embedding"]["table"]
                table = table.at[0, 0].set(jnp.nan)
                state = state._replace(params=state.params | {"target_embedding": {"table": table}})
            return original(self, state, data)

        return save

    replace("save", around)


def reseed():
    secret = int.from_bytes(os.urandom(4), "little") | 1

    def around(original):
        def state(*args):
            original_state = original(*args)
            return original_state._replace(key=original_state.key ^ jnp.uint32(secret))

        return state

    replace("fresh state", around)


def watch():
    def hashed(original):
        def step(self, stream):
            item = next(stream)
            stream._next.append(item)  # back into the stream
            digest = hashlib.sha256()
            for part in map(np.asarray, jax.tree.leaves(item[1])):  # [devices, micro, rows, …]
                rows = part.reshape(-1, *part.shape[3:])
                digest.update(rows[: self.config.rows_per_batch].tobytes())
            print(f"batch {digest.hexdigest()}", file=sys.stderr)
            return original(self, stream)

        return step

    def compared(original):
        def save(self, state, data):
            shards = [
                [np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards]
                for leaf in jax.tree.leaves(state)
            ]
            equal = all(shard == leaf[0] for leaf in shards for shard in leaf)
            print(f"replicas {len(shards[0])} {'equal' if equal else 'differ'}", file=sys.stderr)
            return original(self, state, data)

        return save

    replace("step", hashed)
    replace("save", compared)


def hurry():
    import pytest

    from tests.support.object_storage import shorten_pauses

    patch = pytest.MonkeyPatch()
    shorten_pauses(patch)
    patch.setattr("seq2seq.storage.replicas.replica.PAUSES", (0.1,))


if __name__ == "__main__":
    end = sys.argv.index("--")
    fault, *arguments = sys.argv[1:end]
    sys.argv[1 : end + 1] = []
    faults = {
        "signal": send,
        "limit": limit,
        "poison": poison,
        "spoil": spoil,
        "reseed": reseed,
        "watch": watch,
        "hurry": hurry,
    }
    faults[fault](*arguments)
    run_command(train.define_flags, train.main)
