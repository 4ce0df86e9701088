"""The endpoints of `/v1/tokens`, `/v1/owners` and `/v1/whoami`."""

from heapq import nsmallest

from semel.machine import State
from semel.machine.access import may_show_token
from semel.machine.rows import TokenRow
from semel.machine.tokens import is_valid
from semel.model.access_commands import ChangeOwner, CreateToken
from semel.model.outcomes import Outcome
from semel.model.outcomes_access import OwnerSet, TokenEnded, TokenStored, UnknownToken
from semel.model.rights import Caller
from semel.server.http import Request, Responder
from semel.server.resources import Resource, RouteHandlers, valid
from semel.wire import responses, routes, tokens
from semel.wire.headers import print_instant
from semel.wire.problems import MalformedRequest, Problem
from semel.wire.refusal_table import BY_CODE
from semel.wire.rendering import Response
from semel.wire.schema.tokens import OwnerResponse, RevokedToken, TokenEntry, TokensPage
from semel.wire.tokens import TokenText, make_token, print_optional_instant, scope_entries


class TokensResource(Resource):
    """The handlers that create, list, show and revoke tokens, and change owners."""

    def handlers(self) -> RouteHandlers:
        return {
            routes.TOKEN_LIST: self._list,
            routes.TOKEN_CREATE: self._create,
            routes.TOKEN_SHOW: self._show,
            routes.TOKEN_REVOKE: self._revoke,
            routes.OWNER_CHANGE: self._change_owner,
            routes.WHOAMI: self._who_am_i,
        }

    def _who_am_i(self, _request: Request, responder: Responder, _name: str) -> None:
        who = tokens.who_am_i(responder.caller)
        responder.send(responses.json_response(200, who))

    def _create(self, request: Request, responder: Responder, _name: str) -> None:
        caller = self._required(responder)
        random = self.engine.clock.random_bytes
        token = make_token(random(tokens.ID_BYTES), random(tokens.SECRET_BYTES))
        command = valid(
            tokens.parse_create_token(
                request.headers, request.body, now_ms=self.now_ms, token=token, caller=caller
            )
        )
        self.submit(command, responder, lambda outcome: _created(outcome, command, token))

    def _revoke(self, request: Request, responder: Responder, name: str) -> None:
        self._required(responder)
        command = tokens.parse_revoke_token(name, request.query, now_ms=self.now_ms)
        self.submit(command, responder, _revoked)

    def _required(self, responder: Responder) -> Caller:
        """Return the caller. Raises MalformedRequest if access is off."""
        if responder.caller is None:
            entry = BY_CODE["access_off"]
            raise MalformedRequest(Problem(entry.status, entry.code, str(entry.message)))
        return responder.caller

    def _list(self, request: Request, responder: Responder, _name: str) -> None:
        caller = responder.caller
        after, limit = valid(tokens.parse_tokens_query(request.query))

        def question(state: State) -> TokensPage:
            shown = (
                token_id
                for token_id, row in state.tokens.items()
                if token_id > after and _may_show(caller, token_id, row)
            )
            page = nsmallest(limit + 1, shown)
            entries = [self._entry(each, state.tokens[each]) for each in page[:limit]]
            return TokensPage(entries, page[limit - 1] if len(page) > limit else None)

        self.ask(question, responder, lambda page: responses.json_response(200, page))

    def _show(self, _request: Request, responder: Responder, name: str) -> None:
        caller = responder.caller

        def question(state: State) -> TokenEntry | None:
            row = state.tokens.get(name)
            if row is None or not _may_show(caller, name, row):
                return None
            return self._entry(name, row)

        self.ask(question, responder, _shown)

    def _entry(self, token_id: str, row: TokenRow) -> TokenEntry:
        state = "live" if is_valid(row, self.now_ms) else "expired"
        return TokenEntry(
            token_id,
            row.principal,
            scope_entries(row.scopes),
            print_instant(row.created_ms),
            description=row.description,
            issuer=row.issuer or None,
            expires_at=print_optional_instant(row.expires_ms),
            revoked_at=print_optional_instant(row.revoked_ms),
            used_at=print_optional_instant(max(row.used_ms, self.access.used_ms(token_id)) or None),
            state=state if row.revoked_ms is None else "revoked",
        )

    def _change_owner(self, request: Request, responder: Responder, _name: str) -> None:
        command = valid(
            tokens.parse_change_owner(request.headers, request.body, now_ms=self.now_ms)
        )
        self.submit(command, responder, lambda outcome: _owner_changed(outcome, command))


def _may_show(caller: Caller | None, token_id: str, row: TokenRow) -> bool:
    return caller is None or may_show_token(caller, token_id, row)


def _created(outcome: Outcome, command: CreateToken, token: TokenText) -> Response:
    if isinstance(outcome, TokenStored):
        return responses.json_response(201, tokens.new_token(command, token))
    return responses.outcome_response(outcome)


@responses.responds_to(TokenEnded)
def _revoked(outcome: TokenEnded) -> Response:
    revoked = RevokedToken(outcome.id, print_instant(outcome.revoked_ms), outcome.count)
    return responses.json_response(200, revoked)


def _shown(entry: TokenEntry | None) -> Response:
    if entry is None:
        return responses.outcome_response(UnknownToken())
    return responses.json_response(200, entry)


def _owner_changed(outcome: Outcome, command: ChangeOwner) -> Response:
    if isinstance(outcome, OwnerSet):
        changed = OwnerResponse(command.kind, command.name, outcome.owner, outcome.previous)
        return responses.json_response(200, changed)
    return responses.outcome_response(outcome)
