"""Alembic's environment: it runs the migrations over a connection that `app.archive.database.migrate` gives it."""

from alembic import context

from app.archive.database.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
