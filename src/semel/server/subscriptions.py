"""The endpoints of `/v1/stream/__ds`: subscriptions and their wakes.

Requests about a wake in flight carry the token of this wake. It permits them whether access is on
or off, and it is checked before the body is read.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from semel.broker.engine import Engine
from semel.machine.subscription_views import (
    ClaimView,
    SubscriptionPage,
    SubscriptionView,
    claim_view,
    subscription_page,
    subscription_view,
)
from semel.model.outcomes import Outcome
from semel.model.outcomes_subscriptions import (
    Fenced,
    SubscriptionCreated,
    SubscriptionDeleted,
    TokenInvalid,
    UnknownSubscription,
    WakeClaimed,
)
from semel.model.rights import SUBSCRIPTION
from semel.model.steps import Steps
from semel.model.subscription_commands import (
    PULL_WAKE,
    WEBHOOK,
    AckWake,
    DeleteSubscription,
    ReleaseWake,
    ResumeSubscription,
    UnlinkStream,
)
from semel.server.access import Access
from semel.server.admission import send_response
from semel.server.http import Request, Responder
from semel.server.metrics import OutcomeCounts
from semel.server.resources import Resource, RouteHandlers, valid
from semel.server.wake_tokens import WakeTokens
from semel.server.webhooks import Webhooks
from semel.wire import routes, subscriptions
from semel.wire.control_errors import control_problem, control_refusal
from semel.wire.paths import WEBHOOK_KEYS
from semel.wire.problems import MalformedRequest, Problem
from semel.wire.rendering import Response, problem_of
from semel.wire.responses import json_response
from semel.wire.routes import RouteMatch
from semel.wire.subscriptions import Signing, ack_response, control_response
from semel.wire.tokens import bearer_of
from semel.wire.wake_acks import ack_without_token, fence_other

T = TypeVar("T")
# The requests that are permitted by the token of a wake.
BY_WAKE_TOKEN: Final = frozenset(
    {routes.SUBSCRIPTION_CALLBACK, routes.SUBSCRIPTION_ACK, routes.SUBSCRIPTION_RELEASE}
)


class SubscriptionsResource(Resource):
    """The handlers of subscriptions, their wakes, and the keys that verify deliveries."""

    def __init__(
        self,
        engine: Engine,
        access: Access,
        tally: OutcomeCounts,
        *,
        webhooks: Webhooks,
        tokens: WakeTokens,
    ) -> None:
        super().__init__(engine, access, tally)
        self.tally = tally
        self._webhooks = webhooks
        self._tokens = tokens

    def handlers(self) -> RouteHandlers:
        return {
            routes.SUBSCRIPTION_LIST: self._list,
            routes.SUBSCRIPTION_SHOW: self._show,
            routes.SUBSCRIPTION_CREATE: self._create,
            routes.SUBSCRIPTION_DELETE: self._delete,
            routes.SUBSCRIPTION_LINK: self._link,
            routes.SUBSCRIPTION_UNLINK: self._unlink,
            routes.SUBSCRIPTION_CLAIM: self._claim,
            routes.SUBSCRIPTION_RESUME: self._resume,
            routes.SUBSCRIPTION_CALLBACK: partial(self._ack, routes.SUBSCRIPTION_CALLBACK, WEBHOOK),
            routes.SUBSCRIPTION_ACK: partial(self._ack, routes.SUBSCRIPTION_ACK, PULL_WAKE),
            routes.SUBSCRIPTION_RELEASE: self._release,
            routes.WEBHOOK_KEYS: self._keys,
        }

    def problem_response(self, problem: Problem) -> Response:
        """Return the response to a refused request, in the form of these addresses."""
        return control_problem(problem)

    def is_stranger(self, match: RouteMatch, request: Request) -> bool:
        """Return True if a request needs the token of a wake, and has none that is valid."""
        if match.route not in BY_WAKE_TOKEN:
            return False
        try:
            return self._tokens.read_request(request, match.name) is None
        except MalformedRequest:  # the keys cannot be used, so the request is refused
            return True

    # ---- subscriptions ---------------------------------------------------------------------------

    def _list(self, request: Request, responder: Responder, _name: str) -> None:
        query = valid(subscriptions.parse_subscriptions_query(request.query))
        caller = responder.caller
        question = partial(
            subscription_page,
            prefix=query.prefix,
            after=query.after,
            limit=query.limit,
            may_see=lambda name: self.access.may_see(caller, SUBSCRIPTION, name),
        )

        def respond(page: SubscriptionPage) -> Response:
            has_webhook = any(each.row.url is not None for each in page.subscriptions)
            signing = self._signing(request) if has_webhook else None
            return subscriptions.page_response(page, signing)

        self.ask(question, responder, _safely(respond))

    def _show(self, request: Request, responder: Responder, name: str) -> None:
        query = valid(subscriptions.parse_links_query(request.query))
        question = partial(subscription_view, name=name, after=query.after, limit=query.limit)

        def respond(view: SubscriptionView | None) -> Response:
            if view is None:
                return control_refusal(UnknownSubscription())
            info = subscriptions.subscription_info(view, self._signing_of(view, request))
            return json_response(200, info)

        self.ask(question, responder, _safely(respond))

    def _create(self, request: Request, responder: Responder, name: str) -> None:
        command = valid(
            subscriptions.parse_create(name, request.headers, request.body, now_ms=self.now_ms)
        )
        if command.url is not None:
            self._check_url(command.url)
        _ = self._tokens.keys  # they are needed for every wake, so create them now

        def steps_of(outcome: Outcome, view: SubscriptionView | None) -> Steps[Response]:
            yield from ()
            if not isinstance(outcome, SubscriptionCreated) or view is None:
                return control_refusal(UnknownSubscription())  # it is deleted already
            return subscriptions.created_response(outcome, view, self._signing_of(view, request))

        self.submit_and_ask(command, responder, partial(subscription_view, name=name), steps_of)

    def _check_url(self, url: str) -> None:
        """Raise MalformedRequest if the server cannot deliver to a URL, or must not."""
        reason = self._webhooks.unusable()
        if reason is not None:
            raise MalformedRequest(subscriptions.no_deliveries(reason))
        reason = self._webhooks.refuse_url(url)
        if reason is not None:
            raise MalformedRequest(subscriptions.url_rejected(reason))

    def _signing_of(self, view: SubscriptionView, request: Request) -> Signing | None:
        return None if view.row.url is None else self._signing(request)

    def _signing(self, request: Request) -> Signing:
        origin = self._webhooks.jwks_origin(request.headers.get("host"))
        return Signing(self._tokens.use(lambda keys: keys.kid), origin + WEBHOOK_KEYS)

    def _delete(self, _request: Request, responder: Responder, name: str) -> None:
        def respond(outcome: Outcome) -> Response:
            if isinstance(outcome, UnknownSubscription):
                outcome = SubscriptionDeleted()  # U9: the deletion can be repeated
            return control_response(outcome)

        self.submit(DeleteSubscription(self.now_ms, name), responder, respond)

    def _link(self, request: Request, responder: Responder, name: str) -> None:
        command = subscriptions.parse_link(name, request.headers, request.body, now_ms=self.now_ms)
        self.submit(command, responder, control_response)

    def _unlink(self, request: Request, responder: Responder, name: str) -> None:
        command = UnlinkStream(self.now_ms, name, request.detail)
        self.submit(command, responder, control_response)

    def _resume(self, _request: Request, responder: Responder, name: str) -> None:
        self.submit(ResumeSubscription(self.now_ms, name), responder, control_response)

    def _keys(self, _request: Request, responder: Responder, _name: str) -> None:
        jwks = self._tokens.use(lambda keys: keys.jwks(self.now_ms // 1000))
        send_response(responder, subscriptions.keys_response(jwks))

    # ---- wakes -----------------------------------------------------------------------------------

    def _claim(self, request: Request, responder: Responder, name: str) -> None:
        command = valid(
            subscriptions.parse_wake_claim(name, request.headers, request.body, now_ms=self.now_ms)
        )
        keys = self._tokens.keys

        def steps_of(outcome: Outcome, view: ClaimView | None) -> Steps[Response]:
            yield from ()
            generation = outcome.generation if isinstance(outcome, WakeClaimed) else 0
            if view is None or view.generation != generation:  # it has ended already
                return control_refusal(Fenced(name, generation))
            token = keys.token(name, view.wake_id, view.generation)
            return subscriptions.wake_claim_response(view, token)

        self.submit_and_ask(command, responder, partial(claim_view, name=name), steps_of)

    def _ack(
        self, route: str, type_: str, request: Request, responder: Responder, name: str
    ) -> None:
        wake = self._find_wake(route, request, responder, name)
        if wake is None:
            ack = ack_without_token(name)
        else:
            parsed = valid(subscriptions.parse_ack(name, request.headers, request.body))
            ack = fence_other(parsed, wake)
        command = AckWake(self.now_ms, ack, type_, has_token=wake is not None)
        self._submit_by_token(command, responder, ack_response)

    def _release(self, request: Request, responder: Responder, name: str) -> None:
        route = routes.SUBSCRIPTION_RELEASE
        wake = self._find_wake(route, request, responder, name)
        if wake is None:
            ack = ack_without_token(name)
        else:
            parsed = valid(subscriptions.parse_release(name, request.headers, request.body))
            ack = fence_other(parsed, wake)
        command = ReleaseWake(
            self.now_ms, name, ack.wake_id, ack.generation, has_token=wake is not None
        )
        self._submit_by_token(command, responder, control_response)

    def _find_wake(
        self, route: str, request: Request, responder: Responder, name: str
    ) -> tuple[str, int] | None:
        """Return the wake whose token a request has, or None if the token is not valid (W5).

        Raises MalformedRequest if the request has no token, and with access on also if it is not
        valid: the next checks would say to strangers which subscriptions exist.
        """
        wake = self._tokens.read_request(request, name)
        has_token = bearer_of(request.headers, request.repeated) is not None
        if wake is None and (self.access.is_on or not has_token):
            self._note_stranger(route, responder)
            raise MalformedRequest(problem_of(TokenInvalid()))
        return wake

    def _submit_by_token(
        self,
        command: AckWake | ReleaseWake,
        responder: Responder,
        response_of: Callable[[Outcome], Response],
    ) -> None:
        """Submit a command that needs no right, because the request has the token of a wake."""

        def reply(outcome: Outcome) -> None:
            self.tally.note(outcome)
            send_response(responder, response_of(outcome))

        self.engine.submit(command, reply)

    def _note_stranger(self, route: str, responder: Responder) -> None:
        if self.access.is_on:
            self.access.refusals.note_unknown(responder.account.address, route)


def _safely(respond: Callable[[T], Response]) -> Callable[[T], Response]:
    """Return a function that responds with the problem if the keys cannot be used."""

    def respond_to(view: T) -> Response:
        try:
            return respond(view)
        except MalformedRequest as refusal:
            return control_problem(refusal.problem)

    return respond_to
