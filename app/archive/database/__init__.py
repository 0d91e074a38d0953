"""The archive's database: its tables and their migrations, writes and reads."""
