"""Turn orders into bills, exactly once; an invalid order does not stop the others."""

import semel
from semel.pipeline import Graph, run

with semel.local() as client:  # a private server; else semel.Client("http://127.0.0.1:4437")
    shop = Graph("shop", url=client.url, errors="errors")

    @shop.source("import", out="orders")
    def orders(cursor: int | None):
        for number in range(0 if cursor is None else cursor + 1, 1000):  # continues after a restart
            yield number, {"id": number, "price": 100 + number, "pieces": number % 7}

    @shop.stream("bill", in_="orders", out={"bill": "bills", "parcel": "parcels"})
    def bill(order: dict) -> dict:
        each = order["price"] * 100 // order["pieces"]  # what if there are no pieces?
        return {"bill": {"id": order["id"], "each": each}, "parcel": {"id": order["id"]}}

    run(shop)  # on a permanent server: kill -9 this at any time, run it again, same result
    for name in ("orders", "bills", "parcels", "errors"):
        print(name, sum(1 for _ in client.stream(name).read()))
