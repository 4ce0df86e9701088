"""Exactly-once writes to Delta Lake, for sink functions `(df, delivery)` on Spark.

Delta stores in its log the last version of every application, in the same commit as the rows. Here
the application is the processor, and its version is the number of the step. If the data of the
server was deleted, the numbers start at 1 again. To detect that, a second application stores part
of the hash of the step as its version.
"""

from typing import Final

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame

from semel.pipeline.values import Delivery, EngineFailed

_HASH_DIGITS: Final = 15  # 15 hexadecimal digits are 60 bits; a version has 63


def write(
    frame: DataFrame,
    delivery: Delivery,
    *,
    table: str,
    storage_options: dict[str, str] | None = None,
) -> bool:
    """Append the rows of a step to a table; return False if they are stored already.

    The table is created if it does not exist. Raises EngineFailed if the table has a later step, or
    a different step with the same number. All rows pass through the driver. For large steps, use
    Spark's own Delta connector, with the processor as `txnAppId` and the number of the step as
    `txnVersion`.
    """
    app = f"{delivery.graph}/{delivery.processor}"
    hash_app, hash_version = f"{app}#hash", int(delivery.hash[:_HASH_DIGITS], 16)
    existing = None
    if DeltaTable.is_deltatable(table, storage_options):
        existing = DeltaTable(table, storage_options=storage_options)
        done = existing.transaction_version(app)
        if done is not None and delivery.number <= done:
            # Only the last step can be repeated.
            is_last = existing.transaction_version(hash_app) in (None, hash_version)
            if delivery.number == done and is_last:
                return False
            raise EngineFailed(
                f"the table has step {done} of {app} already, which is not the same as step"
                f" {delivery.number}: either a newer instance is running, or the data of the server"
                " was deleted and its steps start at 1 again; in that case write to another table,"
                " or choose another id for the graph"
            )
    # This write is based on the version checked above. If another driver has stored the step
    # since then, Delta refuses the write.
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
