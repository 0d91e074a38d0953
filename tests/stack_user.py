import secrets

from app.cli.stack.layout import Layout


def admit(layout: Layout, user: str) -> str:
    """The URL of a NATS user with every right, whom the nats-server of a stack that has not started will admit."""
    config, password = layout.data_dir / "nats.conf", f"p{secrets.token_hex(8)}"
    before, sign, after = config.read_text().partition("authorization {\n  users: [")
    assert sign, "the users of the packaged configuration follow"
    config.write_text(f"{before}{sign}\n    {{user: {user}, password: {password}}}{after}")
    return layout.nats_url.replace("//", f"//{user}:{password}@")
