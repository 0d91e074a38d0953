"""The pure core: facts, their fold, and the strategies that decide. No I/O, no clock, no environment, no logging."""
