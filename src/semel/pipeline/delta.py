"""A sink to Delta Lake, exactly once: for functions `(df, delivery)` on Spark.

Delta stores the last version of every application in its log, in the same commit as the rows. The
application is the processor, its version the number of the step. Numbers start again if the data of
the server was deleted, so a second application stores part of the hash of the step, to detect that.
"""

from typing import Final

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame

from semel.pipeline.values import Delivery, EngineFailed

_HASH_DIGITS: Final = 15  # hexadecimal: a version has 63 bits


def write(
    frame: DataFrame,
    delivery: Delivery,
    *,
    table: str,
    storage_options: dict[str, str] | None = None,
) -> bool:
    """Append the rows of a step to a table; return False if they are stored already.

    The table is created if it does not exist. Raises EngineFailed if it has a later step, or
    another step of this number. The rows pass through the driver: for large steps use Spark's own
    Delta connector, with `txnAppId` as the application and `txnVersion` as the number of the step.
    """
    app = f"{delivery.graph}/{delivery.processor}"
    hash_app, hash_version = f"{app}#hash", int(delivery.hash[:_HASH_DIGITS], 16)
    existing = None
    if DeltaTable.is_deltatable(table, storage_options):
        existing = DeltaTable(table, storage_options=storage_options)
        done = existing.transaction_version(app)
        if done is not None and delivery.number <= done:
            # Only the last step is ever repeated.
            is_last = existing.transaction_version(hash_app) in (None, hash_version)
            if delivery.number == done and is_last:
                return False
            raise EngineFailed(
                f"the table has step {done} of {app}, and this is another step"
                f" {delivery.number}: either a newer instance is running, or the data of the server"
                " was deleted and its steps start at 1 again; in that case write to another table,"
                " or choose another id for the graph"
            )
    # Based on the version that was checked: if another driver stores the step now, Delta refuses.
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
