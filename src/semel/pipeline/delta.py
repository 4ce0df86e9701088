"""A sink to Delta Lake, exactly once: for functions `(df, delivery)` on Spark.

Delta keeps the last version of every application in its log, in the same commit as the rows. The
application is the processor, its version the number of the step.
"""

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame

from semel.pipeline.delivery import Delivery


def write(
    frame: DataFrame,
    delivery: Delivery,
    *,
    table: str,
    storage_options: dict[str, str] | None = None,
) -> bool:
    """Append the rows of a step to a table, made if there is none; False if they are there already.

    The rows pass through the driver. For large steps use Spark's own Delta connector instead, whose
    options `txnAppId` and `txnVersion` take the same two.
    """
    app = f"{delivery.graph}/{delivery.processor}"
    found = None
    if DeltaTable.is_deltatable(table, storage_options):
        found = DeltaTable(table, storage_options=storage_options)
        done = found.transaction_version(app)
        if done is not None and delivery.number <= done:
            return False
    # Written on what was looked at: if another driver stores the step meanwhile, Delta refuses.
    write_deltalake(
        table if found is None else found,
        frame.toArrow(),
        mode="append" if found is not None else "error",
        storage_options=storage_options,
        commit_properties=CommitProperties(app_transactions=[Transaction(app, delivery.number)]),
    )
    return True
