"""Admission of work: the backlog, the measured throughput and the spend of a day."""
