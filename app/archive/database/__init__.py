"""The archive's database: its tables, how they are made, and what is written to and read from them."""
