"""The guards against forged facts: where each stands, and which test notices."""

from tests.mutants.guard import Guard

SIGNED = "tests/contracts/test_signed_journal.py::"
ATTACK = "tests/attack/test_forged_facts.py::"
REVOCATION = f"{ATTACK}test_a_forged_revocation_revokes_nothing_and_an_honest_one_still_does"

SIGNATURES = (
    Guard(
        "a record without a valid signature is not believed",
        "app/log/signature.py",
        "        if any(hmac.compare_digest(",
        "        if True or any(hmac.compare_digest(",
        f"{SIGNED}test_a_forged_second_write_hides_and_changes_nothing[none]",
    ),
    Guard(
        "a signature covers the subject",
        "app/log/signature.py",
        'b"%b\\n%b" % (subject.encode(), data)',
        "data",
        f"{SIGNED}test_a_signature_is_valid_on_its_own_subject_alone",
    ),
    Guard(
        "a forged record does not hide the honest one before it",
        "app/log/journal.py",
        "            batch.records += filter(None, await asyncio.gather(*reads))\n",
        "            await asyncio.gather(*reads)\n",
        f"{SIGNED}test_a_forged_second_write_hides_and_changes_nothing[none]",
    ),
    Guard(
        "a stored record may be named Status",
        "app/log/direct_get.py",
        '        if "Nats-Sequence" in headers and "Nats-Subject" in headers:\n',
        '        if "Status" not in headers:\n',
        f"{SIGNED}test_a_forged_second_write_hides_and_changes_nothing[status 404]",
    ),
    Guard(
        "a record that is read needs a signature",
        "app/log/direct_get.py",
        "        if self.signer.is_authentic(record.subject, record.data, headers):\n",
        "        if True:\n",
        f"{SIGNED}test_a_page_of_forged_records_does_not_end_a_read",
    ),
    Guard(
        "a forged first write does not occupy its subject",
        "app/log/first_write.py",
        "        if self._signer.is_authentic(record.subject, record.data, headers) and (accepts",
        "        if (accepts",
        f"{SIGNED}test_a_forged_first_write_does_not_occupy_its_subject[none]",
    ),
    Guard(
        "a live record needs a signature as well",
        "app/log/journal.py",
        "        if self.signer.is_authentic(subject, message.data, headers) and",
        "        if",
        f"{SIGNED}test_of_live_records_only_signed_ones_are_delivered[none]",
    ),
    Guard(
        "an item of the queue needs a signature as well",
        "app/log/work_queue.py",
        "            if not self._signed or self._journal.signer.is_authentic(record.subject, record.data, headers):\n",
        "            if True:\n",
        f"{ATTACK}test_a_forged_item_of_the_queue_is_terminated_and_not_delivered_again",
    ),
    Guard(
        "a key's rights are signed",
        "app/access/keys.py",
        "            if not hmac.compare_digest(self._sign(record.subject, text).encode(), signature.encode()):\n",
        "            if not signature:\n",
        f"{REVOCATION}[no log key-of another key-live]",
    ),
    Guard(
        "a forged revocation does not keep an honest one from being written",
        "app/log/first_write.py",
        "and (accepts is None or accepts(record)):\n",
        ":\n",
        f"{REVOCATION}[no log key-unsigned-stored]",
    ),
)
