"""Exactly-once writes to Delta Lake, for sink functions `(df, delivery)` on Spark.

Each commit to the table also stores the step's number. A step with a stored number is a repeat.

If the server's data is deleted, step numbers start at 1 again, so a new step can have the number
of an old step. To detect this case, each commit also stores a part of the step's hash.
"""

from typing import Final

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame

from semel.pipeline.values import Delivery, EngineFailed

_HASH_DIGITS: Final = 15  # 15 hexadecimal digits are 60 bits, and a version has 63 bits


def write(
    frame: DataFrame,
    delivery: Delivery,
    *,
    table: str,
    storage_options: dict[str, str] | None = None,
) -> bool:
    """Append a step's rows to a table. Return False if the step is already the table's last step.

    The table is created if it does not exist. Raises EngineFailed if the table has a later step, or
    a different step with the same number.

    All rows pass through the Spark driver. For large steps, use Spark's own Delta connector. Set
    its `txnAppId` to `<graph>/<processor>` and its `txnVersion` to the number of the step.
    """
    app = f"{delivery.graph}/{delivery.processor}"
    hash_app, hash_version = f"{app}#hash", int(delivery.hash[:_HASH_DIGITS], 16)
    existing = None
    if DeltaTable.is_deltatable(table, storage_options):
        existing = DeltaTable(table, storage_options=storage_options)
        done = existing.transaction_version(app)
        if done is not None and delivery.number <= done:
            # A repeated step can only be the last one that was stored.
            is_last = existing.transaction_version(hash_app) in (None, hash_version)
            if delivery.number == done and is_last:
                return False
            raise EngineFailed(
                f"the table already has step {done} of {app} and cannot accept step"
                f" {delivery.number}. Either a newer instance of the processor is running, or the"
                " server's data was deleted. If the data was deleted, write to a different table"
                " or give the graph a different id"
            )
    # This write is based on the version of the table that was checked above. If another driver has
    # stored the step since then, Delta refuses the write.
    write_deltalake(
        table if existing is None else existing,
        frame.toArrow(),
        mode="error" if existing is None else "append",
        storage_options=storage_options,
        commit_properties=CommitProperties(
            app_transactions=[
                Transaction(app, delivery.number),
                Transaction(hash_app, hash_version),
            ]
        ),
    )
    return True
