"""A sink to Delta Lake, exactly once: for functions `(df, delivery)` on Spark.

Delta keeps the last version of every application in its log, in the same commit as the rows. The
application is the processor, its version the number of the step. Numbers begin anew with a server
whose data was thrown away, so a second application keeps what tells one history from the other.
"""

from typing import Final

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame

from semel.pipeline.delivery import Delivery
from semel.pipeline.problems import EngineFailed

_PRINT_DIGITS: Final = 15  # of the hash, in hexadecimal: a version has 63 bits


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
            _refuse_another_history(found, app, done, delivery)
            return False
    # Written on what was looked at: if another driver stores the step meanwhile, Delta refuses.
    write_deltalake(
        table if found is None else found,
        frame.toArrow(),
        mode="append" if found is not None else "error",
        storage_options=storage_options,
        commit_properties=CommitProperties(
            app_transactions=[
                Transaction(app, delivery.number),
                Transaction(_print_app(app), _print(delivery)),
            ]
        ),
    )
    return True


def _refuse_another_history(table: DeltaTable, app: str, done: int, delivery: Delivery) -> None:
    """Only the last step is ever done again; what else has an old number is not that step."""
    stored = table.transaction_version(_print_app(app))
    if delivery.number == done and stored in (None, _print(delivery)):
        return
    raise EngineFailed(
        f"the table has step {done} of {app}, and this is another step {delivery.number}: a newer"
        " instance is running, or the server was made anew and counts from 1; then write to another"
        " table, or give the graph another id"
    )


def _print_app(app: str) -> str:
    return f"{app}#hash"


def _print(delivery: Delivery) -> int:
    return int(delivery.hash[:_PRINT_DIGITS], 16)
