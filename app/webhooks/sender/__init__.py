"""The process that posts webhooks: queue, bulkheads, attempts and their schedule."""
