"""Plans of other services: each approved plan starts one deliberation per role, whether it comes by NATS or HTTP."""
