import hashlib
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plainsql_server.core.credential import KEY_PREFIX, SECRET_LENGTH, _checksum, digest, is_well_formed, new_key

pytestmark = pytest.mark.unit

BASE_62 = string.digits + string.ascii_letters


def test_a_key_is_its_prefix_160_random_bits_or_more_and_a_checksum() -> None:
    text = new_key().text
    assert re.fullmatch(r"svc_k_[0-9A-Za-z]{38}", text)
    assert len(text) == SECRET_LENGTH
    random_characters = SECRET_LENGTH - len(KEY_PREFIX) - 6
    assert 62**random_characters >= 2**160


def test_a_fresh_key_is_well_formed_and_unlike_any_other() -> None:
    made = {new_key().text for _ in range(1_000)}
    assert len(made) == 1_000
    assert all(map(is_well_formed, made))


@given(position=st.integers(0, SECRET_LENGTH - 1), put=st.sampled_from(BASE_62))
def test_a_key_with_one_wrong_character_is_not_well_formed(position: int, put: str) -> None:
    text = new_key().text
    wrong = text[:position] + put + text[position + 1 :]
    assert is_well_formed(wrong) == (wrong == text)


@given(position=st.integers(len(KEY_PREFIX), SECRET_LENGTH - 2))
def test_a_key_with_two_neighbours_swapped_is_not_well_formed(position: int) -> None:
    text = new_key().text
    swapped = text[:position] + text[position + 1] + text[position] + text[position + 2 :]
    assert is_well_formed(swapped) == (swapped == text)


@given(st.text(max_size=80))
def test_text_that_is_no_key_is_not_well_formed_and_raises_nothing(text: str) -> None:
    assert not is_well_formed(text)


@pytest.mark.parametrize("tail", ["\n", " ", "0", "\0"])
def test_a_key_with_trailing_characters_is_not_well_formed(tail: str) -> None:
    assert not is_well_formed(new_key().text + tail)


def test_a_key_without_its_last_character_is_not_well_formed() -> None:
    assert not is_well_formed(new_key().text[:-1])


def test_the_prefix_of_another_kind_of_secret_breaks_the_checksum() -> None:
    assert not is_well_formed(new_key().text.replace("svc_k_", "svc_s_", 1))


def test_digits_of_other_alphabets_are_rejected() -> None:
    text = new_key().text
    assert not is_well_formed(text[:10] + "٣" + text[11:])


def test_a_right_checksum_does_not_make_up_for_a_character_outside_the_alphabet() -> None:
    body = new_key().text[:-7] + "-"
    assert not is_well_formed(body + _checksum(body))


def test_the_sha_256_of_the_whole_secret_is_stored() -> None:
    secret = new_key()
    assert secret.digest == digest(secret.text) == hashlib.sha256(secret.text.encode()).digest()


def test_a_secret_shows_its_first_ten_and_last_four_characters_only() -> None:
    secret = new_key()
    assert secret.shown_prefix == secret.text[:10]
    assert secret.last_four == secret.text[-4:]
    assert secret.text[10:-4] not in repr(secret)
    assert secret.text not in f"{secret!r} {secret!s}"
