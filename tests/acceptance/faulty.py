"""train.py with one fault: python faulty.py FAULT ARGUMENT… -- FLAGS of train.py.

    signal MODULE:FUNCTION N NAME   before call N of a function, SIGNAME to this process;
                                    several names, one after the other
    poison WORD                     the loss of a batch with this word in a source is not a number
    spoil N                         the state offered for save N holds one number that is none
    reseed                          the dropout key of the run is another one in each process
    watch                           says of each batch its hash, of each save if replicas are equal
"""

import hashlib
import importlib
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import jax.numpy as jnp  # noqa: E402

import train  # noqa: E402
from training.command import run_command  # noqa: E402


def replace(name, around):
    """`module:outer.function` becomes around(function)."""
    module, _, path = name.partition(":")
    owner = importlib.import_module(module)
    *outer, last = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    setattr(owner, last, around(getattr(owner, last)))


def send(function, call, name):
    calls = []

    def around(original):
        def counted(*args, **options):
            calls.append(1)
            if len(calls) == int(call):
                print(f"now {name} in {function}", file=sys.stderr, flush=True)
                for one in name.split():
                    os.kill(os.getpid(), getattr(signal, f"SIG{one}"))
            return original(*args, **options)

        return counted

    replace(function, around)


def poison(word):
    ids = []

    def learn(original):
        def prepare(*args):
            data = original(*args)
            ids.extend(data.tokenizers[0].encode(word))
            return data

        return prepare

    def spoil(original):
        def sums(model, params, batch, *rest):
            found = original(model, params, batch, *rest)
            return found._replace(loss=jnp.where((batch.source == ids[0]).any(), jnp.nan, 1.0)
                                  * found.loss)

        return sums

    replace("train:prepare_data", learn)
    replace("training.step:loss_sums", spoil)


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

    replace("training.saving:Checkpoints.save", around)


def reseed():
    secret = int.from_bytes(os.urandom(4), "little") | 1

    def around(original):
        def state(*args):
            found = original(*args)
            return found._replace(key=found.key ^ jnp.uint32(secret))

        return state

    replace("train:init_state", around)


def watch():
    def told(original):
        def split(batch, *counts):
            digest = hashlib.sha256(b"".join(part.tobytes() for part in batch)).hexdigest()
            if len(counts) == 2:  # a training batch: devices and micro-batches
                print(f"batch {digest}", file=sys.stderr)
            return original(batch, *counts)

        return split

    def compared(original):
        def save(self, state, data):
            import jax
            import numpy as np

            shards = [[np.asarray(one.data).tobytes() for one in leaf.addressable_shards]
                      for leaf in jax.tree.leaves(state)]
            equal = all(one == leaf[0] for leaf in shards for one in leaf)
            print(f"replicas {len(shards[0])} {'equal' if equal else 'differ'}", file=sys.stderr)
            return original(self, state, data)

        return save

    replace("train:split_rows", told)
    replace("training.saving:Checkpoints.save", compared)


if __name__ == "__main__":
    end = sys.argv.index("--")
    fault, *arguments = sys.argv[1:end]
    sys.argv[1 : end + 1] = []
    {"signal": send, "poison": poison, "spoil": spoil, "reseed": reseed,
     "watch": watch}[fault](*arguments)
    run_command(train.define_flags, train.main)
