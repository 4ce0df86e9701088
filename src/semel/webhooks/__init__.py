"""Receives the wakes that a semel server delivers to a webhook, and processes them exactly once.

    receiver = WebhookReceiver(client, bill, subscriptions=["billing"])
    app.mount("/hooks/semel", receiver)

The receiver is an ASGI application. A handler of another kind verifies deliveries with
`SignatureCheck`. Both need the extra `webhooks`: in a checkout, pip install '.[webhooks]'.
"""

from semel.webhooks.keys import SignatureCheck
from semel.webhooks.receiver import WebhookReceiver

__all__ = ["SignatureCheck", "WebhookReceiver"]
