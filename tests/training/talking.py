"""Run in two processes by test_hosts.py: prints what each of them hears of the other."""

import argparse
import json

import numpy as np


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--coordinator")
    parser.add_argument("--num_processes", type=int)
    parser.add_argument("--process_id", type=int)
    given = parser.parse_args()

    from barter_jax.errors import RunError, UserError
    from barter_jax.training import hosts as hosts_lib

    hosts_lib.start(given.coordinator, given.num_processes, given.process_id)
    hosts = hosts_lib.Hosts()

    def heard(call):
        try:
            return call()
        except (UserError, RunError) as error:
            return f"{type(error).__name__}: {error}"

    def fail():
        raise UserError("the first one's mistake: ä")

    mine = {"a": np.full(3, 1.0 + hosts.index, np.float32), "b": np.array([hosts.index == 0])}
    tree = hosts.tree_from_first(mine)
    found = {
        "first": hosts.first,
        "value": hosts.from_first(lambda: {"from": hosts.index, "text": "ü" * 1000}),
        "error": heard(lambda: hosts.from_first(fail)),
        "tree": {name: value.tolist() for name, value in tree.items()},
        "largest": hosts.largest(10 * hosts.index),
        "same": heard(lambda: hosts.agree("topology", {"heads": [1, 2]})),
        "other": heard(lambda: hosts.agree("topology", {"heads": [1, hosts.index]})),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
