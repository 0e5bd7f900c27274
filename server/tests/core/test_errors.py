import pytest

from plainsql_server.core.errors import (
    AccessError,
    ConflictError,
    Diagnosis,
    EngineError,
    InternalError,
    LimitError,
    Outcome,
    RequestError,
    ServiceError,
    StatementError,
    described,
    without_detail,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", [RequestError, AccessError, ConflictError, LimitError, EngineError])
def test_an_error_before_postgresql_has_the_outcome_not_executed(kind: type[ServiceError]) -> None:
    assert kind("a_code", "A message.").outcome is Outcome.NOT_EXECUTED


def test_a_failed_statement_was_rolled_back() -> None:
    assert StatementError("undefined_table", "no such table").outcome is Outcome.ROLLED_BACK


def test_an_outcome_that_is_known_replaces_the_usual_one() -> None:
    assert LimitError("result_too_large", "Too large.", outcome=Outcome.COMMITTED).outcome is Outcome.COMMITTED


def test_an_internal_errors_context_goes_only_to_the_log() -> None:
    error = InternalError("secret context")
    assert error.internal_context == "secret context"
    assert "secret" not in f"{error} {error.message} {error.hint} {error.code} {error.diagnosis}"
    assert error.outcome is Outcome.UNKNOWN


def test_an_error_is_not_retryable_by_default() -> None:
    assert RequestError("a_code", "A message.").retryable is False
    assert EngineError("a_code", "A message.", retryable=True).retryable is True


def test_an_error_without_a_diagnosis_has_an_empty_one() -> None:
    assert RequestError("a_code", "A message.").diagnosis == Diagnosis()


def test_an_error_reads_as_its_message() -> None:
    assert str(AccessError("a_code", "A message.")) == "A message."


def test_outcomes_are_the_four_words_of_the_contract() -> None:
    assert {str(outcome) for outcome in Outcome} == {"committed", "rolled_back", "not_executed", "unknown"}


def test_what_postgresql_adds_to_a_message_about_a_connection_is_not_for_the_log() -> None:
    text = (
        'connection to server at "a" failed: FATAL:  the database system is not accepting connections\n'
        "DETAIL:  Hot standby mode is disabled.\n"
        'connection to server at "b" failed: Connection refused\n'
    )
    assert without_detail(text) == (
        'connection to server at "a" failed: FATAL:  the database system is not accepting connections\n'
        'connection to server at "b" failed: Connection refused'
    )
    assert described(OSError(text)) == f"OSError: {without_detail(text)}"
